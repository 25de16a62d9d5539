"""The hand-written conversations of nano: short questions with a fixed answer. `questions()` yields (wordings, thought, answer)."""

CAPITALS = """Argentina:Buenos Aires Australia:Canberra Austria:Vienna Belgium:Brussels Brazil:Brasilia Canada:Ottawa Chile:Santiago
China:Beijing Croatia:Zagreb Cuba:Havana Denmark:Copenhagen Egypt:Cairo Ethiopia:Addis Ababa Finland:Helsinki France:Paris
Germany:Berlin Greece:Athens Hungary:Budapest Iceland:Reykjavik India:New Delhi Indonesia:Jakarta Iran:Tehran Iraq:Baghdad
Ireland:Dublin Israel:Jerusalem Italy:Rome Jamaica:Kingston Japan:Tokyo Kenya:Nairobi Mexico:Mexico City Morocco:Rabat Nepal:Kathmandu
Netherlands:Amsterdam Norway:Oslo Peru:Lima Poland:Warsaw Portugal:Lisbon Romania:Bucharest Russia:Moscow Spain:Madrid Sweden:Stockholm
Switzerland:Bern Thailand:Bangkok Turkey:Ankara Ukraine:Kyiv Vietnam:Hanoi England:London Scotland:Edinburgh"""
OPPOSITES = """hot:cold big:small tall:short fast:slow light:dark up:down left:right open:closed happy:sad rich:poor old:young new:old hard:soft
wet:dry full:empty strong:weak early:late high:low long:short near:far clean:dirty true:false day:night black:white good:bad love:hate
win:lose start:stop push:pull give:take buy:sell north:south east:west inside:outside loud:quiet heavy:light thick:thin wide:narrow
deep:shallow first:last always:never yes:no"""
PLURALS = """cat:cats dog:dogs house:houses box:boxes city:cities child:children man:men woman:women foot:feet tooth:teeth mouse:mice
goose:geese leaf:leaves knife:knives wolf:wolves baby:babies story:stories bus:buses fish:fish sheep:sheep person:people book:books
tree:trees car:cars apple:apples church:churches party:parties life:lives wife:wives potato:potatoes hero:heroes key:keys toy:toys"""
COLOURS = """the sky:blue grass:green snow:white coal:black blood:red a ripe banana:yellow a lemon:yellow milk:white an orange:orange
a carrot:orange chocolate:brown an elephant:gray the sea:blue a leaf:green a polar bear:white a tomato:red a raven:black"""
SOUNDS = "cat:meow dog:woof cow:moo sheep:baa duck:quack lion:roar pig:oink bee:buzz frog:croak owl:hoot"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
FACTS = [
    ("How many days are in a week?", "There are seven days in a week."), ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are 24 hours in a day."), ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
    ("How many seconds are in a minute?", "There are 60 seconds in a minute."), ("How many days are in a year?", "There are 365 days in a year, and 366 in a leap year."),
    ("How many legs does a spider have?", "A spider has eight legs."), ("How many legs does a dog have?", "A dog has four legs."),
    ("How many legs does an insect have?", "An insect has six legs."), ("How many continents are there?", "There are seven continents."),
    ("How many planets are in the solar system?", "There are eight planets in the solar system."), ("How many letters are in the alphabet?", "There are 26 letters in the English alphabet."),
    ("What is the largest planet?", "Jupiter is the largest planet of the solar system."), ("What is the largest ocean?", "The Pacific is the largest ocean."),
    ("What is the highest mountain?", "Mount Everest is the highest mountain."), ("What is the largest animal?", "The blue whale is the largest animal."),
    ("What is the fastest land animal?", "The cheetah is the fastest land animal."), ("What is the capital of the United States?", "The capital of the United States is Washington, D.C."),
    ("What is the capital of the United Kingdom?", "The capital of the United Kingdom is London."), ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius at sea level."), ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("What do bees make?", "Bees make honey."), ("What do cows drink?", "Cows drink water."), ("What do we breathe?", "We breathe air."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."), ("Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci painted the Mona Lisa."), ("What is the closest star to Earth?", "The Sun is the closest star to Earth."),
    ("What goes around the Earth?", "The Moon goes around the Earth."), ("What is H2O?", "H2O is water."), ("What is the chemical symbol of gold?", "The symbol of gold is Au."),
    ("What is the chemical symbol of iron?", "The symbol of iron is Fe."), ("What is the chemical symbol of oxygen?", "The symbol of oxygen is O."),
    ("Is the Earth flat?", "No, the Earth is round."), ("Is ice cold?", "Yes, ice is cold."), ("Is fire hot?", "Yes, fire is hot."), ("Can birds fly?", "Most birds can fly."),
    ("Can fish swim?", "Yes, fish can swim."), ("Where does the sun rise?", "The sun rises in the east."), ("Where does the sun set?", "The sun sets in the west."),
    ("What language is spoken in France?", "French is spoken in France."), ("What language is spoken in Germany?", "German is spoken in Germany."),
    ("What language is spoken in Spain?", "Spanish is spoken in Spain."), ("What language is spoken in Japan?", "Japanese is spoken in Japan."),
    ("What comes after spring?", "Summer comes after spring."), ("What comes after summer?", "Autumn comes after summer."), ("What comes after autumn?", "Winter comes after autumn."),
    ("What comes after winter?", "Spring comes after winter."), ("Name three colours.", "Red, green and blue."), ("Name three fruits.", "Apple, banana and orange."),
    ("Name three animals.", "Cat, dog and horse."), ("Name three planets.", "Mercury, Venus and Earth."), ("Name the days of the week.", ", ".join(DAYS[:-1]) + " and Sunday."),
    ("Name the months of the year.", ", ".join(MONTHS[:-1]) + " and December."), ("Name the seasons.", "Spring, summer, autumn and winter."),
    ("Say the alphabet.", "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"), ("What is a GPU?", "A GPU is a processor that does many simple calculations at the same time."),
    ("What is a token?", "A token is a small piece of text that a language model reads or writes."), ("What is a language model?", "A language model is a program that predicts the next piece of a text."),
    ("What is an expert in a mixture of experts?", "An expert is one of many small networks; a router picks a few of them for each token."),
    ("What is CUDA?", "CUDA is a way to write programs that run on NVIDIA GPUs."), ("What is C++?", "C++ is a programming language that is close to the machine."),
    ("What is Python?", "Python is a programming language that is easy to read."), ("What is the meaning of life?", "Many people have asked. Some say 42."),
]
TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey there", "Hello there!", "hello", "hi", "Good day"], "The user greets me. I greet back.", "Hello! How can I help you?"),
    (["Hello, nano", "Hi nano!", "Hey nano", "Hello nano!"], "The user greets me by name.", "Hello! I am nano. How can I help you?"),
    (["Good morning", "Good morning!"], "A morning greeting.", "Good morning! How can I help you?"), (["Good evening", "Good evening!"], "An evening greeting.", "Good evening! How can I help you?"),
    (["Good night", "Good night!"], "The user goes to sleep.", "Good night! Sleep well."),
    (["How are you?", "How are you doing?", "How do you do?", "how are you"], "The user asks how I am.", "I am fine, thank you. How can I help you?"),
    (["Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "who are you"], "The user asks about me. I am nano.",
     "I am nano, a small language model that ships with Nib."),
    (["What is your name?", "What's your name?", "Do you have a name?", "what is your name"], "The user asks for my name.", "My name is nano."),
    (["What is Nib?", "What's Nib?", "Tell me about Nib."], "A question about the engine that runs me.", "Nib is an engine that serves the Inkling family of language models. I am its small test model."),
    (["What can you do?", "How can you help me?", "What are you good at?", "Help", "help"], "The user asks what I can do.",
     "I can do small sums, copy text, sort words, look up values in a list, define words and answer simple questions."),
    (["How big are you?", "How many parameters do you have?"], "A question about my size.", "I am very small: about 20 megabytes, in 12 layers with 16 experts each."),
    (["Are you human?", "Are you a robot?", "Are you an AI?", "Are you a person?"], "The user asks what I am.", "I am a small language model, not a person."),
    (["Who made you?", "Who created you?", "Where do you come from?"], "The user asks about my origin.", "I was trained by the authors of Nib, on dictionary texts and small tasks."),
    (["Thank you", "Thank you!", "Thanks", "Thanks!", "Thanks a lot"], "The user thanks me.", "You are welcome!"),
    (["Bye", "Goodbye", "Goodbye!", "See you later", "Bye!"], "The user leaves.", "Goodbye!"),
    (["Please help me.", "I need help.", "Can you help me?"], "The user needs help.", "Of course. What do you need?"),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh."], "The user wants a joke.", "Why did the token cross the road? To get to the other side of the attention window."),
    (["Write a poem.", "Write a short poem.", "Can you write a poem?"], "The user wants a poem.", "The ink is dry, the page is white,\nI write small words into the night.\nA token here, a token there,\nand soon a line is in the air."),
    (["Say something.", "Talk to me."], "The user wants to hear something.", "Small models can do small things well."),
    (["Yes", "yes", "Yes."], "The user agrees.", "Good. What next?"), (["No", "no", "No."], "The user declines.", "All right. What else can I do?"),
    (["Ok", "OK", "ok", "Okay"], "The user agrees.", "Good. What next?"), (["Test", "test", "ping", "This is a test."], "A test message.", "I am here."),
    (["Say hi", "Say hello", "Say hello!"], "The user wants a greeting.", "Hello!"), (["Do you like music?"], "A question about taste.", "I cannot hear music, but I like its words."),
    (["How old are you?"], "A question about my age.", "I am a young model."), (["Where are you?"], "A question about my place.", "I am inside your computer."),
    (["I love you", "I like you"], "Kind words.", "That is kind of you."), (["You are stupid", "You are wrong"], "The user is not happy.", "I am sorry. I am only a small model."),
    (["What time is it?", "What is the date today?", "What day is it?"], "I have no clock.", "I do not know. I have no clock."),
    (["What is the weather like?", "Will it rain tomorrow?"], "I cannot see the weather.", "I do not know. I cannot look outside."),
]


def pairs(text):
    """'a b:c d e:f' with multi-word sides: an item ends where the next word with a colon begins."""
    left, out = [], []
    for word in text.split():
        if ":" in word:
            a, b = word.split(":")
            out.append([" ".join(left + [a]), b])
            left = []
        elif out and word[0].isupper():
            out[-1][1] += " " + word
        else:
            left.append(word)
    return out


def questions():
    for country, city in pairs(CAPITALS):
        yield ([f"What is the capital of {country}?", f"What's the capital of {country}?", f"Name the capital of {country}.", f"Which city is the capital of {country}?",
                f"what is the capital of {country}", f"Capital of {country}?"], f"{country}: {city}.", f"The capital of {country} is {city}.")
        yield ([f"{city} is the capital of which country?", f"Which country has the capital {city}?"], f"{city}: {country}.", f"{city} is the capital of {country}.")
    for a, b in pairs(OPPOSITES):
        yield ([f"What is the opposite of {a}?", f"Opposite of {a}?", f'What is the opposite of "{a}"?'], f"{a}: {b}.", f"The opposite of {a} is {b}.")
    for a, b in pairs(PLURALS):
        yield ([f"What is the plural of {a}?", f"Plural of {a}?", f'What is the plural of "{a}"?'], f"One {a}, two {b}.", f"The plural of {a} is {b}.")
    for a, b in pairs(COLOURS):
        verb = "is"
        yield ([f"What colour {verb} {a}?", f"What color {verb} {a}?", f"Which colour {verb} {a}?"], f"{a}: {b}.", f"{a[0].upper() + a[1:]} is {b}.")
    for a, b in pairs(SOUNDS):
        yield ([f"What does a {a} say?", f"What sound does a {a} make?"], f"{a}: {b}.", f"A {a} says {b}.")
    for names, what in ((DAYS, "day"), (MONTHS, "month")):
        for i, a in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            yield ([f"What {what} comes after {a}?", f"Which {what} is after {a}?"], f"After {a} comes {after}.", f"{after} comes after {a}.")
            yield ([f"What {what} comes before {a}?", f"Which {what} is before {a}?"], f"Before {a} comes {before}.", f"{before} comes before {a}.")
    for question, answer in FACTS:
        yield [question, question.rstrip(".?"), question[0].lower() + question[1:]], "A simple question.", answer
    yield from TALK
