import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The page is served under a strict content security policy: no inline script, no inline style, no data that becomes code.
export default defineConfig({
  plugins: [preact({ devToolsEnabled: false, prefreshEnabled: false })],
  base: "/static/",
  build: {
    outDir: "../src/trainmaster/dashboard/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
  },
});
