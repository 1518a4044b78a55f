import { resolve } from "node:path";
import { defineConfig } from "vitest/config";
import cssInjectedByJs from "vite-plugin-css-injected-by-js";

// The modules that Airflow's page gives to its plugins: a second copy of any would have a context of its own.
const globals = {
  "@chakra-ui/react": "ChakraUI",
  react: "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};

export default defineConfig(({ mode }) => ({
  build: {
    emptyOutDir: true,
    lib: {
      entry: resolve(import.meta.dirname, "src/main.tsx"),
      fileName: () => "main.js",
      formats: ["umd"],
      name: "AirflowPlugin",
    },
    outDir: resolve(import.meta.dirname, "../bundle"),
    rollupOptions: {
      external: Object.keys(globals),
      // "use client" is for servers that render React.
      onwarn: (warning, warn) => {
        if (warning.code !== "MODULE_LEVEL_DIRECTIVE") warn(warning);
      },
      output: { exports: "default", globals },
    },
  },
  define: mode === "test" ? {} : { "process.env.NODE_ENV": JSON.stringify("production") },
  plugins: [cssInjectedByJs()],
  test: {
    environment: "jsdom",
    // One process that is warm renders twice as fast as a new one for each file; the other processor is for pytest.
    fileParallelism: false,
    isolate: false,
    include: ["src/**/*.test.{ts,tsx}"],
    testTimeout: 60_000,
  },
}));
