import { call, search } from './api.js';

// pages reads pages of a list until it has `count` items, or `most` pages: a page can have few items
// or none although a next page exists. It returns the items, the first page, and whether more items
// may exist.
export async function pages(path, query, list, count, most, options) {
  const items = [];
  let first = null;
  let token = '';
  do {
    const wanted = { ...query, page_size: Math.min(count, 1000), page_token: token };
    const page = await call('GET', path + search(wanted), undefined, options);
    first ??= page;
    items.push(...page[list]);
    token = page.next_page_token;
  } while (token && items.length < count && --most > 0);
  return { items, first, more: token !== '' };
}
