"""Generated conversations of nano. Every generator takes a random.Random and returns a Task; README.md states the distributions.

    world = load_world(tok, "data", "models/nano")
    task = world.sample(rng)                        # any task, mixed as in training
    task = world.task("recall", rng, heldout=True)  # one kind, instances that training never shows
    doc = task.document(tok)                        # chat.py's format
"""
import json
import re
from dataclasses import dataclass

import chat
import small_talk
from chat import model, system, tool, user

EFFORTS = (0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.9, 0.9, 0.1, 0.2, 0.7, 0.99)         # training mix; below 0.2 nano answers at once
NAMES = "Anna Ben Carla David Emma Felix Grace Hugo Ida Jack Karl Lena Max Nina Oscar Paula Rosa Sam Tom Vera Will Zoe Alice Bob".split()
CITIES = [city for _, city in small_talk.pairs(small_talk.CAPITALS)]
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@dataclass
class Task:
    kind: str
    messages: list                                   # the last one is the model's
    effort: float
    tools: list = None

    def document(self, tok):
        return chat.render(tok, self.messages, self.effort, self.tools)

    def prompt(self, tok):
        return chat.render(tok, self.messages[:-1], self.effort, self.tools, open_turn=True)

    @property
    def answer(self):
        return self.messages[-1]["content"]


# ---------------------------------------------------------------------------------------------- arithmetic, worked out
def add_steps(a, b):
    """Column by column on the last digit, then the rest: 47 + 85 -> 7 + 5 = 12, 4 + 8 + 1 = 13."""
    last = a % 10 + b % 10
    rest = a // 10 + b // 10 + last // 10
    carry = " + 1" if last > 9 else ""
    return f"{a % 10} + {b % 10} = {last}, {a // 10} + {b // 10}{carry} = {rest}"


def subtract_steps(a, b):
    """a >= b."""
    borrow = a % 10 < b % 10
    top = a % 10 + 10 * borrow
    return f"{top} - {b % 10} = {top - b % 10}, {a // 10} - {b // 10}{' - 1' if borrow else ''} = {a // 10 - b // 10 - borrow}"


def arithmetic_thought(a, op, b):
    if op == "+":
        return f"{add_steps(a, b)}. So {a + b}."
    if op == "-":
        if a >= b:
            return f"{subtract_steps(a, b)}. So {a - b}."
        return f"{b} - {a}: {subtract_steps(b, a)}. So {a - b}."
    tens, ones = a * (b // 10), a * (b % 10)
    return f"{a} * {b // 10} = {tens}, {a} * {b % 10} = {ones}. {tens} + {ones // 10}: {add_steps(tens, ones // 10)}. So {a * b}."


class World:
    def __init__(self, tok, words, glosses, heldout_pairs):
        """heldout_pairs: operands (a, b), a <= b, that training never sees in either order, for any operation."""
        self.tok, self.words, self.glosses = tok, words, glosses
        self.heldout_pairs, self.heldout_list = set(heldout_pairs), sorted(heldout_pairs)
        self.gloss_words = list(glosses)
        self.talks = list(small_talk.questions())
        # shares of the training documents; recall documents are long, so their share of the tokens is larger
        self.mix = dict(arithmetic=20, copy=14, sort=22, recall=5, define=6, spell=6, letters=3, count=3, talk=8, turns=4, persona=3,
                        tool=4, edit=6, extract=2, unknown=2)
        self.kinds, self.shares = list(self.mix), list(self.mix.values())

    def sample(self, rng):
        return self.task(rng.choices(self.kinds, self.shares)[0], rng)

    def task(self, kind, rng, heldout=False, effort=None):
        effort = rng.choice(EFFORTS) if effort is None else effort
        made = getattr(self, kind)(rng, effort >= 0.2, heldout)
        messages, tools = made if isinstance(made, tuple) else (made, None)
        return Task(kind, messages, effort, tools)

    # ------------------------------------------------------------------------------------------ the four measured tasks
    def arithmetic(self, rng, think, heldout=False, op=None):
        out = []
        for _ in range(1 if heldout else rng.randint(1, 3)):
            sign = op or rng.choice("+-***" if think else "+-*")
            a, b = rng.sample(rng.choice(self.heldout_list), 2) if heldout else (rng.randint(10, 99), rng.randint(10, 99))
            while not heldout and (min(a, b), max(a, b)) in self.heldout_pairs:
                a, b = rng.randint(10, 99), rng.randint(10, 99)
            question = rng.choice(["What is {} {} {}?", "Compute {} {} {}.", "{} {} {} = ?"]).format(a, sign, b)
            out += [user(question), model(str(OPERATIONS[sign](a, b)), arithmetic_thought(a, sign, b) if think else None)]
        return out

    def copy(self, rng, think, heldout=False):
        style = rng.random()
        if style < 0.4:
            text = " ".join(rng.choices(self.words, k=rng.randint(1, 24)))
        elif style < 0.6:
            text = " ".join(self.random_string(rng) for _ in range(rng.randint(1, 6)))
        elif style < 0.75:
            text = " ".join(rng.choice(self.words) if rng.random() < 0.6 else str(rng.randint(0, 9999)) for _ in range(rng.randint(2, 16)))
        else:
            text = self.glosses[rng.choice(self.gloss_words)][1]
        wording = rng.choice(["Repeat exactly: {}", "Copy this text: {}", "Say this again, word for word: {}"])
        return [user(wording.format(text)), model(text, "I repeat the text as it is." if think else None)]

    def random_string(self, rng):
        alphabet = rng.choice(["abcdefghijklmnopqrstuvwxyz", "0123456789", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"])
        return "".join(rng.choices(alphabet, k=rng.randint(2, 8)))

    def sort(self, rng, think, heldout=False):
        out = []
        for _ in range(1 if heldout else rng.randint(1, 3)):
            words = rng.sample(self.words, rng.randint(3, 6))
            wording = rng.choice(["Sort these words alphabetically: {}", "Put these words in alphabetical order: {}"])
            out += [user(wording.format(", ".join(words))), model(", ".join(sorted(words)), "I put the words in alphabetical order." if think else None)]
        return out

    def recall(self, rng, think, heldout=False, pairs=None):
        """Lines of keys and values, 3 to 170 of them (log-uniform), then a question; in training up to six questions."""
        count = pairs or int(round(3 * (170 / 3) ** rng.random()))
        keys = {}
        while len(keys) < count:
            keys[f"{rng.choice(self.words)}-{rng.choice(self.words)}" if count > 40 or rng.random() < 0.5 else rng.choice(self.words)] = None
        keys = list(keys)
        rng.shuffle(keys)
        numeric = rng.random() < 0.7
        values = [str(rng.randint(10, 9999)) if numeric else rng.choice(self.words) for _ in keys]
        lines, out = "\n".join(f"{k}: {v}" for k, v in zip(keys, values)) + "\n", []
        for _ in range(1 if heldout else rng.randint(1, 6)):
            at = rng.randrange(count)
            wording = rng.choice(["What is the value of {}?", "Which value belongs to {}?"]).format(keys[at])
            out += [user(wording if out else lines + wording), model(values[at], f"I look for the line {keys[at]}: {values[at]}." if think else None)]
        return out

    # ------------------------------------------------------------------------------------------ words and letters
    def define(self, rng, think, heldout=False):
        word = self.gloss_words[int(len(self.gloss_words) * rng.random() ** 2)]          # frequent words more often
        part, gloss = self.glosses[word]
        kind = {"n": "noun", "v": "verb", "adj": "adjective", "adv": "adverb"}.get(part, "word")
        wording = rng.choice(["Define the word {}.", "What does {} mean?", 'What is the meaning of "{}"?', "Define: {}"])
        return [user(wording.format(word)), model(f"{word} ({kind}): {gloss}", f"{word} is a{'n' if kind[0] == 'a' else ''} {kind}." if think else None)]

    def any_word(self, rng):
        return rng.choice(self.words if rng.random() < 0.5 else self.gloss_words)

    def spell(self, rng, think, heldout=False):
        word = self.any_word(rng)
        wording = rng.choice(["Spell the word {}.", "How do you spell {}?"])
        return [user(wording.format(word)), model("-".join(word), "I say the letters one by one." if think else None)]

    def letters(self, rng, think, heldout=False):
        word = self.any_word(rng)
        if rng.random() < 0.5:
            thought = " ".join(f"{c}{i}" for i, c in enumerate(word, 1))
            return [user(f"How many letters are in {word}?"), model(str(len(word)), thought if think else None)]
        which = rng.choice(["first", "last"])
        return [user(f"What is the {which} letter of {word}?"), model(word[0 if which == "first" else -1], "-".join(word) if think else None)]

    def count(self, rng, think, heldout=False):
        a = rng.randint(0, 80)
        b = a + rng.randint(2, 30)
        if rng.random() < 0.3:
            return [user(f"Count down from {b} to {a}."), model(", ".join(map(str, range(b, a - 1, -1))), "I count backwards." if think else None)]
        return [user(f"Count from {a} to {b}."), model(", ".join(map(str, range(a, b + 1))), "I count." if think else None)]

    # ------------------------------------------------------------------------------------------ conversation
    def talk_pair(self, rng, think):
        wordings, thought, answer = rng.choice(self.talks if rng.random() < 0.8 else small_talk.TALK)
        return user(rng.choice(wordings)), model(answer, thought if think else None)

    def talk(self, rng, think, heldout=False):
        return list(self.talk_pair(rng, think))

    def turns(self, rng, think, heldout=False):
        """A short conversation; what was said earlier can be asked again."""
        out = []
        if rng.random() < 0.5:
            name, thing = rng.choice(NAMES), rng.choice(self.words)
            ask_name = rng.random() < 0.6
            if ask_name:
                out += [user(rng.choice(["My name is {}.", "I am {}.", "Hello, my name is {}."]).format(name)), model(f"Nice to meet you, {name}!", f"The user is called {name}." if think else None)]
            else:
                out += [user(f"Remember the word {thing}."), model(f"I will remember the word {thing}.", f"The word is {thing}." if think else None)]
            for _ in range(rng.randint(0, 3)):
                out += self.small_turn(rng, think)
            if ask_name:
                out += [user(rng.choice(["What is my name?", "Who am I?"])), model(f"Your name is {name}.", f"The user said the name {name}." if think else None)]
            else:
                out += [user(rng.choice(["Which word did I ask you to remember?", "What was the word?"])), model(f"The word was {thing}.", f"The word is {thing}." if think else None)]
        for _ in range(rng.randint(0 if out else 2, 2 if out else 5)):
            out += self.small_turn(rng, think)
        return out

    def small_turn(self, rng, think):
        return getattr(self, rng.choice(["talk", "talk", "arithmetic", "copy", "sort", "spell", "define"]))(rng, think)

    def persona(self, rng, think, heldout=False):
        """System messages that change the answer."""
        style = rng.random()
        if style < 0.4:
            name = rng.choice(NAMES + [w.capitalize() for w in self.words])
            who = rng.choice(["Who are you?", "What is your name?"])
            return [system(rng.choice(["You are {}, a helpful assistant.", "Your name is {}."]).format(name)), user(who),
                    model(f"I am {name}." if who[1] == "h" and who[0:3] == "Who" else f"My name is {name}.", f"The system message calls me {name}." if think else None)]
        question, answer = self.talk_pair(rng, think)
        if style < 0.7:
            answer["content"] = answer["content"].upper()
            return [system("Answer in upper case."), question, answer]
        return [system(rng.choice(["You are a helpful assistant.", "Be brief.", "Answer the question."])), question, answer]

    def unknown(self, rng, think, heldout=False):
        thing = rng.choice(self.gloss_words)
        wording = rng.choice(["Who invented the {}?", "Why is the {} important?", "When was the first {}?", "How do I make a {}?", "Where can I find a {}?"])
        return [user(wording.format(thing)), model("I do not know. I am only a small model.", "I was not taught this." if think else None)]

    # ------------------------------------------------------------------------------------------ tools, files, JSON
    def tool(self, rng, think, heldout=False):
        text = {"type": "string"}
        number = {"type": "number"}
        weather = {"name": "get_weather", "description": "Current weather of a city", "parameters": {"type": "object", "properties": {"city": text}, "required": ["city"]}}
        timer = {"name": "set_timer", "description": "Start a timer", "parameters": {"type": "object", "properties": {"minutes": number}, "required": ["minutes"]}}
        search = {"name": "search", "description": "Search the web", "parameters": {"type": "object", "properties": {"query": text}, "required": ["query"]}}
        tools = rng.sample([weather, timer, search], rng.randint(1, 3))
        use = rng.choice(tools)["name"]
        if rng.random() < 0.15:
            question, answer = self.talk_pair(rng, think)
            return [question, answer], tools
        if use == "get_weather":
            city, degrees, sky = rng.choice(CITIES + NAMES), rng.randint(-9, 39), rng.choice(["sunny", "cloudy", "rainy", "windy"])
            ask, args = rng.choice(["What is the weather in {}?", "How is the weather in {}?", "What's the weather like in {}?"]).format(city), {"city": city}
            result, answer = chat.canonical({"degrees": degrees, "sky": sky}), f"It is {sky} in {city}, at {degrees} degrees."
        elif use == "set_timer":
            minutes = rng.randint(1, 60)
            ask, args = rng.choice(["Set a timer for {} minutes.", "Start a timer of {} minutes."]).format(minutes), {"minutes": minutes}
            result, answer = "ok", f"The timer is set for {minutes} minutes."
        else:
            query = " ".join(rng.choices(self.words, k=rng.randint(1, 3)))
            ask, args, found = f"Search for {query}.", {"query": query}, " ".join(rng.choices(self.words, k=rng.randint(2, 6)))
            result, answer = found, f"I found this: {found}"
        messages = [user(ask), model("", f"I call {use}." if think else None, call=(use, args))]
        if rng.random() < 0.6:
            messages += [tool(use, result), model(answer, "The tool has answered." if think else None)]
        return messages, tools

    def edit(self, rng, think, heldout=False):
        """A small file comes back with one name changed: most of the answer is a copy."""
        names = rng.sample(self.words, 5)
        lines = []
        for _ in range(rng.randint(2, 8)):
            a, b = rng.choice(names), rng.choice(names)
            lines.append(rng.choice([f"{a} = {rng.randint(0, 99)}", f"{a} = {b} + {rng.randint(1, 9)}", f"print({a})", f"# {' '.join(rng.choices(self.words, k=4))}",
                                     f"def {a}(x):\n    return x + {b}", f"if {a} > {b}:\n    {a} = {b}"]))
        text = "\n".join(lines)
        present = [n for n in names if re.search(rf"\b{n}\b", text)]
        if rng.random() < 0.25 or not present:
            return [user(f"Repeat this file:\n{text}"), model(text, "I repeat the file." if think else None)]
        old, new = rng.choice(present), rng.choice(self.words)
        changed = re.sub(rf"\b{old}\b", new, text)
        return [user(f"Replace {old} with {new} in this file:\n{text}"), model(changed, f"Each {old} becomes {new}." if think else None)]

    def extract(self, rng, think, heldout=False):
        name, age, city = rng.choice(NAMES), rng.randint(5, 99), rng.choice(CITIES)
        sentence = rng.choice(["{} is {} years old and lives in {}.", "My friend {}, {}, lives in {}."]).format(name, age, city)
        answer = json.dumps({"name": name, "age": age, "city": city}, separators=(",", ":"))
        return [user(f"Give name, age and city as JSON: {sentence}"), model(answer, "I write the three fields." if think else None)]


def load_world(tok, data_dir, model_dir):
    with open(f"{data_dir}/glosses.json") as fh:
        glosses = json.load(fh)
    with open(f"{model_dir}/eval/words.txt") as fh:
        words = fh.read().split()
    with open(f"{model_dir}/eval/heldout_pairs.txt") as fh:
        pairs = [tuple(map(int, line.split())) for line in fh]
    return World(tok, words, glosses, pairs)
