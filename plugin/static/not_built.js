// Shown where the page's script was not built: a checkout, as a rule. Installed packages have it.
globalThis.AirflowPlugin = () =>
  globalThis.React.createElement(
    "div",
    { role: "alert", style: { padding: "2rem" } },
    "The page of duewheel is not built in this checkout. Run `make page` in it, which needs Node.js 20.19 or " +
      "newer and installs that from a package where it is missing; then restart Airflow's API server.",
  );
