/** Starts the page. */

import { render } from "preact";
import { connect } from "./answering";
import { App } from "./app";
import "./page.css";

const root = document.getElementById("app");
if (root !== null) {
  render(<App />, root);
  void connect();
}
