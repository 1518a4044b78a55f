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
    files: ["src/**/*.ts", "src/**/*.tsx"],
    ignores: ["**/*.test.ts", "**/*.test.tsx", "src/testing/**", "src/texts.ts"],
    rules: {
      "no-restricted-syntax": [
        "error",
        ...[
          "JSXText[value=/[A-Za-z]/]",
          "JSXAttribute[name.name=/^(label|title|empty|placeholder|action|aria-label)$/] > Literal[value=/[A-Za-z]{2}/]",
          // Wherever they stand: two words beside each other, and a name among others, such as a choice.
          "Literal[value=/^[A-Za-z]+ [A-Za-z]/]",
          "TemplateElement[value.raw=/^ ?[A-Za-z]+ [A-Za-z]/]",
          "ArrayExpression > Literal[value=/^[A-Z]/]",
        ].map((selector) => ({ message: "Texts stand in src/texts.ts.", selector })),
      ],
    },
  },
  accessibility.flatConfigs.strict,
  hooks.configs.flat["recommended-latest"] ?? hooks.configs["recommended-latest"],
);
