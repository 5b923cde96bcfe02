// Builds the bundle that is committed; the same sources give the same bytes.
import { build } from "esbuild";
import { copyFile, readFile, writeFile } from "node:fs/promises";

const out = process.argv[2] ?? "../src/promptccd/discovery/page/bundle";
await build({
  entryPoints: ["src/main.ts"],
  outfile: `${out}/desk.js`,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  loader: { ".css": "text" },
});
await copyFile("src/index.html", `${out}/index.html`);
const preact = await readFile("node_modules/preact/LICENSE", "utf8");
await writeFile(`${out}/licences.txt`, `desk.js contains Preact (https://preactjs.com):\n\n${preact}`);
