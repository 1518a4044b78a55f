-- The content type of a body is a property. The usual types are stored as a mark of one byte, since the property would
-- take 40 bytes of each message.

-- The mark of the content type that properties name; null for an unusual type, and for none.
create or replace function duewheel.content_type_mark(p_properties jsonb) returns "char"
language sql immutable parallel safe
return case p_properties -> 'content-type'
    when jsonb '"application/json"' then 'j'::"char" when jsonb '"text/plain; charset=utf-8"' then 't'::"char" end;

-- The properties that are stored next to a mark.
create or replace function duewheel.properties_beside(p_mark "char", p_properties jsonb) returns jsonb
language sql immutable parallel safe
return case when p_mark is null then p_properties else nullif(p_properties - 'content-type', '{}') end;

-- The properties that a message was sent with.
-- role: everyone
create or replace function duewheel.all_properties(p_mark "char", p_properties jsonb) returns jsonb
language sql immutable parallel safe
return case
    when p_mark is null then p_properties
    when p_mark = 'j' then coalesce(p_properties, '{}') || '{"content-type": "application/json"}'
    else coalesce(p_properties, '{}') || '{"content-type": "text/plain; charset=utf-8"}' end;
