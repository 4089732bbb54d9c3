// The views in the order of the navigation. A view is {id, title, question, key, icon, View, mark}:
// View gets {id, query} of the route, and mark(frame) returns {n, kind} for the navigation.
import { attention, team } from './views/team.js';
import { dead, queues } from './views/queues.js';
import { conversations, timeline } from './views/timeline.js';
import { view as locks } from './views/locks.js';
import { view as work } from './views/work.js';

export const views = [attention, team, queues, timeline, conversations, dead, locks, work];
