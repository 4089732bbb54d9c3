// The entry of internal/web/ui/vendor/preact.js, which `make vendor` bundles.
import { h } from 'preact';
import htm from 'htm';

export { h, render, Fragment } from 'preact';
export {
  useCallback, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState,
} from 'preact/hooks';
export { batch, computed, effect, signal, useComputed, useSignal } from '@preact/signals';
export const html = htm.bind(h);
