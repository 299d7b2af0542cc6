import { useEffect } from "react";

export const FILTER_ID = "service-filter";

/** Keys: `/` filters, `j` and `k` move between rows, `Esc` clears the filter or leaves a view. Ignored while typing. */
export function useKeyboard(clear: () => void): void {
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const filter = document.getElementById(FILTER_ID) as HTMLInputElement | null;
      const typing = event.target instanceof HTMLInputElement;
      if (typing) {
        if (event.key === "Escape") filter?.blur();
        if (event.key === "Enter" && event.target === filter) {
          // Otherwise the same key press would also click the newly focused button.
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
