// The daemon's time: ages are right even if this machine's clock is not.
import { useEffect, useState } from "./html.js";

let ahead = 0; // of the daemon's clock, in milliseconds

/** Learn the daemon's time from an answer that has just come. */
export function learn(now) {
  if (now > 0 && Math.abs(now - Date.now() - ahead) > 1000) ahead = now - Date.now();
}

export const now = () => Date.now() + ahead;

/** Render again every second, for ages, while the page can be seen. */
export function useNow(every = 1000) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || tick((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  return now();
}
