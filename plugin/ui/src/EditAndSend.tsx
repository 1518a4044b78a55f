// A dead letter is edited and sent again, as a new message.
import { Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, post, refusal } from "./api";
import { Asking } from "./Asking";
import { isJson } from "./format";
import { TextArea } from "./parts";
import { TEXT } from "./texts";

type Body = Schemas["Body"];

/** Whether all of a body is shown, and as text. */
export const isEditable = (body: Body | null): body is Body =>
  body !== null && body.kind !== "hex" && body.shown_bytes === body.size_bytes;

type Props = {
  body: Body;
  broker: string;
  group: string;
  id: string;
  properties: Record<string, unknown>;
  topic: string;
};

/** The properties in a text; undefined if it is no JSON object. */
function propertiesIn(text: string): Record<string, unknown> | undefined {
  try {
    const said: unknown = JSON.parse(text);
    return typeof said === "object" && said !== null && !Array.isArray(said)
      ? (said as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

export function EditAndSend({ body, broker, group, id, properties, topic }: Props) {
  const [text, setText] = useState(body.text);
  const [said, setSaid] = useState(JSON.stringify(properties, undefined, 2));
  return (
    <Asking
      act={async () => {
        const asked = propertiesIn(said);
        if (!asked) {
          throw refusal("NoProperties", TEXT.thePropertiesAreNoJsonObject);
        }
        const sent = await post<Schemas["Sent"]>(broker, "dead-letters/resend", {
          body: text,
          group,
          message_id: id,
          properties: asked,
        });
        return sent.is_new
          ? TEXT.sentAsANewMessageThe(sent.message_id)
          : TEXT.anotherUserHasJustSentIt(sent.message_id);
      }}
      action={TEXT.editAndSend}
    >
      <Text mb={3}>{TEXT.aNewMessageGoesToAt(topic, group)}</Text>
      <TextArea label={TEXT.body} name="body" onText={setText} rows={10} value={text} />
      {body.kind === "json" && !isJson(text) && (
        <Text color="fg.warning" fontSize="sm" mb={2} role="status">
          {TEXT.notValidJson}
        </Text>
      )}
      <TextArea label={TEXT.properties} name="properties" onText={setSaid} rows={3} value={said} />
    </Asking>
  );
}
