import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./ui/app";
import { applyTheme } from "./ui/theme";
import "./style.css";

applyTheme();

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  );
}
