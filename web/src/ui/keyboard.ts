import { useEffect } from "react";

export const FILTER_ID = "service-filter";

/** `/` to filter, `j` and `k` between rows, `Esc` to clear, or to leave a view; never while somebody types. */
export function useKeyboard(clear: () => void): void {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const filter = document.getElementById(FILTER_ID) as HTMLInputElement | null;
      const typing = event.target instanceof HTMLInputElement;
      if (typing) {
        if (event.key === "Escape") filter?.blur();
        if (event.key === "Enter" && event.target === filter) {
          // Or the same key would also press the button that it moves to.
          event.preventDefault();
          move(0, ".services [data-row]");
        }
        return;
      }
      if (event.key === "/" && filter) {
        event.preventDefault();
        filter.focus();
        filter.select();
      } else if (event.key === "j") move(1);
      else if (event.key === "k") move(-1);
      else if (event.key === "Escape") clear();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [clear]);
}

function move(step: number, among = "[data-row]"): void {
  const rows = [...document.querySelectorAll<HTMLElement>(among)];
  const at = rows.findIndex((row) => row === document.activeElement);
  rows[Math.min(rows.length - 1, Math.max(0, at + step))]?.focus();
}
