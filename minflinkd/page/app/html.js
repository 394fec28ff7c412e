// Everything of preact that the page uses, and `html`, which makes elements of template strings without a build step.
import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

export { Component, Fragment, render } from "../vendor/preact.js";
export { useCallback, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(h);

/** Join the names of classes, without those that are false. */
export const classes = (...names) => names.filter(Boolean).join(" ");
