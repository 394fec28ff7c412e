// Figures with a past: what /history has, and the samples that come after it, on one time axis.

/** Many series with the same times. What is not known is null. */
export class SeriesSet {
  constructor(step = 5000, most = 720) {
    this.step = step;
    this.most = most;
    this.start = 0;
    this.length = 0;
    this.values = new Map();
  }

  /** `series`: arrays by name, all with the same length, from `start` on. */
  static of({ start, step, series }, most = 720) {
    const made = new SeriesSet(step, most);
    made.start = start;
    for (const [name, values] of Object.entries(series)) {
      made.values.set(name, values.slice());
      made.length = Math.max(made.length, values.length);
    }
    for (const values of made.values.values()) while (values.length < made.length) values.push(null);
    return made;
  }

  append(at, sample) {
    if (this.length === 0) this.start = at;
    const index = Math.floor((at - this.start) / this.step + 1e-6);
    if (index < 0) return; // what a mended stream repeats may be older than all that is kept
    if (index - this.length > this.most) {
      for (const values of this.values.values()) values.length = 0;
      this.start = at;
      this.length = 0;
      this.append(at, sample);
      return;
    }
    if (index >= this.length) {
      this.length = index + 1;
      for (const values of this.values.values()) while (values.length < this.length) values.push(null);
    }
    for (const [name, value] of Object.entries(sample)) {
      if (!this.values.has(name)) this.values.set(name, new Array(this.length).fill(null));
      this.values.get(name)[index] = value;
    }
    const over = this.length - this.most;
    if (over > 0) {
      for (const values of this.values.values()) values.splice(0, over);
      this.start += over * this.step;
      this.length -= over;
    }
  }

  get(name) {
    return this.values.get(name) ?? [];
  }

  /** The latest value, which may not be older than two steps. */
  last(name) {
    return this.get(name).slice(-3).findLast((value) => value !== null && value !== undefined) ?? null;
  }

  /** The times of all values, in seconds. */
  times() {
    return Array.from({ length: this.length }, (_, i) => (this.start + i * this.step) / 1000);
  }
}
