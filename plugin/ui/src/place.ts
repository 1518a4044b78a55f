// What a part of the page learns from the place where it stands.
import { createContext } from "react";

/** What the place says already, as on the page of a group: fields of filters and columns of that name are not shown. */
export const Given = createContext<readonly string[]>([]);

/** The broker whose names complete what is typed into a filter; the empty string for none. */
export const BrokerId = createContext("");
