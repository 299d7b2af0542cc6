import { useEffect, useState } from "react";

const KEY = "farwater-theme";
const ORDER = ["system", "light", "dark"] as const;
type Theme = (typeof ORDER)[number];

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return ORDER.find((theme) => theme === value) ?? "system";
}

export function applyTheme(theme: Theme = stored()): void {
  document.documentElement.dataset["theme"] = theme;
}

export function ThemeButton() {
  const [theme, setTheme] = useState<Theme>(stored);
  useEffect(() => {
    applyTheme(theme);
    localStorage.setItem(KEY, theme);
  }, [theme]);
  const next = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length] ?? "system";
  return (
    <button type="button" onClick={() => setTheme(next)} aria-label={`colours: ${theme}; change to ${next}`}>
      <span aria-hidden="true">◐</span> {theme}
    </button>
  );
}
