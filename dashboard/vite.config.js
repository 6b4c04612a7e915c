import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../springtide/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the content security policy allows no inline scripts
    modulePreload: { polyfill: false },
  },
});
