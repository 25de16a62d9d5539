"""Renders conversations in the Inkling format as token ids with a training mark on every token that the model itself says.

    doc = render(tok, [user("Hi"), model("Hello!", thinking="A greeting.")], effort=0.9)     # numpy uint16, see below
A document is an array of uint16: the low 14 bits are the id, TARGET marks tokens to learn, START marks the first token.
"""
import json

import numpy as np

ID_MASK, TARGET, START = 0x3FFF, 0x8000, 0x4000


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def tool(name, text):
    return {"role": "tool", "name": name, "content": text}


def model(text, thinking=None, call=None):
    """call: (tool name, arguments)."""
    return {"role": "model", "content": text, "thinking": thinking, "call": call}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def format_effort(effort):
    text = f"{effort:.2f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def render(tok, messages, effort, tools=None, open_turn=False):
    """open_turn: ends with the generation prompt."""
    c = {name: tok.control[f"<|{name}|>"] for name in
         "message_user message_model message_system message_tool content_text content_thinking content_xml content_invoke_tool_json "
         "end_message content_model_end_sampling".split()}
    ids, marks = [], []

    def block(role, kind, text, author="", target=False, first=True):
        tokens = [c["message_" + role], *tok.encode(author), c["content_" + kind], *tok.encode(text), c["end_message"]]
        ids.extend(tokens)
        marks.extend([target and not first] + [target] * (len(tokens) - 1))

    if tools:
        block("system", "xml", canonical([{"description": t.get("description", ""), "name": t["name"], "parameters": t.get("parameters", {}),
                                           "type": "function"} for t in tools]), author="tool_declare")
    said_effort = False
    for m in messages:
        if m["role"] != "system" and not said_effort:
            block("system", "text", "Thinking effort level: " + format_effort(effort))
            said_effort = True
        if m["role"] != "model":
            block(m["role"], "text", m["content"], author=m.get("name", ""))
            continue
        first = True
        if m["thinking"]:
            block("model", "thinking", m["thinking"], target=True, first=first)
            first = False
        if m["content"]:
            block("model", "text", m["content"], target=True, first=first)
            first = False
        if m["call"]:
            name, args = m["call"]
            block("model", "invoke_tool_json", '{"name":' + canonical(name) + ',"args":' + canonical(args) + "}", author=name, target=True, first=first)
        ids.append(c["content_model_end_sampling"])
        marks.append(True)
    if open_turn:
        ids.append(c["message_model"])
        marks.append(False)
    doc = np.array(ids, np.uint16) | np.where(marks, TARGET, 0).astype(np.uint16)
    doc[0] |= START
    return doc


def plain(tok, text):
    """A text for language modelling, between two <|endoftext|>; everything after the first is a target."""
    end = tok.control["<|endoftext|>"]
    doc = np.array([end, *tok.encode(text), end], np.uint16) | TARGET
    doc[0] = end | START
    return doc
