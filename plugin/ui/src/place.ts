// Facts that the place on the page gives to its parts.
import { createContext } from "react";

/** What the place says already, as on the page of a group: fields of filters and columns of that name are not shown. */
export const Given = createContext<readonly string[]>([]);

/** The broker whose names complete the text of a filter; the empty string if there is none. */
export const BrokerId = createContext("");
