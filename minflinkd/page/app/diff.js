// The lines of two texts side by side: which were left, which are new, which stayed. Pure.

const MOST = 4_000_000; // comparisons; beyond, what lies between common beginnings and ends is one change

/** Return [[left, right]]: the text of each, or null where the other side has a line of its own. */
export function sideBySide(before, after) {
  const old = before.split("\n");
  const now = after.split("\n");
  let from = 0;
  while (from < old.length && from < now.length && old[from] === now[from]) from++;
  let end = 0;
  while (end < old.length - from && end < now.length - from && old.at(-1 - end) === now.at(-1 - end)) end++;
  const same = (lines) => lines.map((line) => [line, line]);
  return [
    ...same(old.slice(0, from)),
    ...between(old.slice(from, old.length - end), now.slice(from, now.length - end)),
    ...same(old.slice(old.length - end)),
  ];
}

function between(old, now) {
  if (old.length * now.length > MOST) return pairs(old, now);
  const width = now.length + 1;
  const longest = new Uint32Array((old.length + 1) * width); // common lines from here on
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      longest[i * width + j] = old[i] === now[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const rows = [];
  let left = [];
  let right = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      rows.push(...pairs(left, right), [old[i++], now[j++]]);
      [left, right] = [[], []];
    } else if (j >= now.length || (i < old.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) left.push(old[i++]);
    else right.push(now[j++]);
  }
  return [...rows, ...pairs(left, right)];
}

const pairs = (left, right) => Array.from({ length: Math.max(left.length, right.length) }, (_, i) => [left[i] ?? null, right[i] ?? null]);

/** Leave out what is far from any change: a number stands for so many equal lines. */
export function folded(rows, around = 3) {
  const near = new Set();
  rows.forEach(([left, right], i) => {
    if (left !== right) for (let n = i - around; n <= i + around; n++) near.add(n);
  });
  const found = [];
  let left = 0;
  rows.forEach((row, i) => {
    if (near.has(i)) {
      if (left) found.push(left);
      left = 0;
      found.push(row);
    } else left++;
  });
  return left ? [...found, left] : found;
}
