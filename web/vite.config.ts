import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The hub serves the page at /ui/ under a policy without inline code, so nothing is inlined and nothing is injected.
export default defineConfig({
  base: "/ui/",
  plugins: [react()],
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false }, sourcemap: false },
});
