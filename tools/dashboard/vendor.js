// The entry of internal/web/ui/vendor/preact.js, which `make vendor` bundles.
import { h } from 'preact';
import htm from 'htm';

export { render } from 'preact';
export {
  useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState,
} from 'preact/hooks';
export { computed, effect, signal } from '@preact/signals';
export const html = htm.bind(h);
