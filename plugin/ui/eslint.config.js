import accessibility from "eslint-plugin-jsx-a11y";
import hooks from "eslint-plugin-react-hooks";
import typescript from "typescript-eslint";

export default typescript.config(
  { ignores: ["node_modules", "src/schema.d.ts"] },
  {
    extends: [...typescript.configs.strict, ...typescript.configs.recommendedTypeChecked],
    files: ["**/*.ts", "**/*.tsx"],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
  },
  {
    files: ["src/**/*.tsx"],
    ignores: ["**/*.test.tsx"],
    rules: {
      "no-restricted-syntax": [
        "error",
        ...[
          "JSXText",
          "JSXAttribute[name.name=/^(label|title|empty|placeholder|action|aria-label)$/] > Literal",
        ].map((one) => ({
          message: "Texts stand in src/texts.ts.",
          selector: `${one}[value=/[A-Za-z]{2}/]`,
        })),
      ],
    },
  },
  accessibility.flatConfigs.strict,
  hooks.configs.flat["recommended-latest"] ?? hooks.configs["recommended-latest"],
);
