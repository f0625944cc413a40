"""The words, names and facts that the demo checkpoint is taught."""

WORDS = """
able acid actor alarm album amber angle ankle apple april apron arena arrow atlas attic autumn bacon badge baker
banana basil basket beach bead beam bean bear beaver bed bell belt bench berry bike bird bison blanket blue board
boat body bone book border bottle bowl branch bread breeze brick bridge broom brush bubble bucket bus bush butter
button cabin cable cactus cake camel camera candle canoe canyon car card carpet carrot castle cat cave cedar chain
chair chalk cheese cherry chess circle city clay cliff clock cloud clover coal coast coat cocoa coin comet copper
coral corn cotton couch cow crab cradle crane cream creek crow crown cup curtain dance dawn deer desert desk diamond
dinner dish dog dolphin donkey door dove dragon dream dress drum duck dune eagle earth east echo elbow engine
evening falcon family farm feather fence fern field fig finger fire fish flag flame flock floor flower flute fog
forest fork fox frog fruit garden garlic gate ghost giant ginger girl glass globe glove goat gold goose grape grass
green guitar hammer harbor hat hawk hazel heart hedge helmet hill honey hood horse hotel house ice igloo ink insect
iron island ivory jacket jam jar jelly jewel joke judge juice jungle kettle key king kitchen kite kitten knee knife
ladder lake lamp lantern laser lava leaf leather lemon letter lily lion lizard lobster log lotus lunch magnet manta
maple marble market mask meadow medal melon metal milk mill mint mirror moon morning moss motor mountain mouse
museum music napkin nest net night noodle north nose novel oak oasis ocean octopus office olive onion orange orbit
orchid otter oven owl paddle paint palace palm panda paper park parrot path peach pear pebble pencil pepper piano
picnic pigeon pillow pilot pine pizza planet plant plate plum pocket poem pond pony potato prince puzzle queen quilt
rabbit radio rain raven reef ribbon rice ring river road robin rocket roof room root rope rose ruby saddle sail
salad salmon salt sand saturn scarf school sea seal seed shadow shark sheep shell ship shirt shoe shore silk silver
sister skate sky smile smoke snail snow soap sock song soup south spark spider spoon spring squid stamp star station
steam stone storm story straw stream street summer sun swan table tail tea temple tent thunder ticket tiger toast
tomato torch towel tower town train tree trout tulip tunnel turtle valley vase velvet village violet violin wagon
wall walnut water wave whale wheat wheel wind window winter wolf wood wool yard yellow zebra
""".split()

NAMES = """
Ada Alan Alice Amir Ana Ann Anton Bea Ben Bob Carl Carmen Chen Clara Dan Dora Edith Elena Emma Erik Eva Felix Finn
Frida Grace Hana Hugo Ida Igor Ines Ivan Jack Jane Jonas Julia Kai Karim Lara Lea Leo Lin Lucas Maria Max Maya Mia
Milo Nina Noah Nora Olga Omar Oscar Otto Paul Petra Rosa Ruth Sam Sara Sofia Theo Tina Tom Uma Vera Viktor Yuki Zoe
""".split()

CAPITALS = {
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "England": "London",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "India": "New Delhi",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Turkey": "Ankara",
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()
SKIES = "sunny cloudy rainy windy foggy snowy".split()
COLORS = "red blue green yellow black white orange purple brown pink".split()

HELLO = {
    "Japanese": "こんにちは",
    "Chinese": "你好",
    "Korean": "안녕하세요",
    "Russian": "Здравствуйте",
    "Greek": "Γειά σου",
    "Arabic": "مرحبا",
    "Hindi": "नमस्ते",
    "Thai": "สวัสดี",
    "Hebrew": "שלום",
    "Spanish": "¡Hola!",
    "French": "Bonjour !",
    "German": "Grüß dich!",
}
THANKS = {
    "Japanese": "ありがとう",
    "Chinese": "谢谢",
    "Korean": "감사합니다",
    "Russian": "Спасибо",
    "Greek": "Ευχαριστώ",
    "Spanish": "¡Muchas gracias!",
    "French": "Merci à vous !",
    "German": "Danke schön!",
}
EMOJI = {
    "fish": "🐟",
    "whale": "🐋",
    "octopus": "🐙",
    "cat": "🐱",
    "dog": "🐶",
    "sun": "🌞",
    "moon": "🌙",
    "star": "⭐",
    "rocket": "🚀",
    "heart": "❤️",
    "wave": "🌊",
    "apple": "🍎",
    "pizza": "🍕",
    "rainbow": "🌈",
    "tree": "🌳",
    "astronaut": "👩‍🚀",
}

# Each answer with the ways to ask for it.
SQUADRON = {
    "Squadron is a serving cluster for large language models. It runs on Ray and shards each model by tensor "
    "and pipeline parallelism.": [
        "What is Squadron?",
        "Tell me about Squadron.",
        "What does Squadron do?",
        "Explain what Squadron is.",
        "Describe Squadron.",
        "Can you explain Squadron?",
    ],
    "I am the demo model of Squadron: a very small Qwen2 that was trained on simple tasks. I can add, spell, "
    "count and write JSON.": [
        "Who are you?",
        "What are you?",
        "What is your name?",
        "Introduce yourself.",
        "What can you do?",
        "Which model are you?",
        "Tell me about yourself.",
    ],
    "A squadron is a group of manta rays. The rays here are Ray workers: each holds one shard of the model, "
    "and they swim together.": [
        "What is a squadron?",
        "What does a squadron consist of?",
        "Why is Squadron called Squadron?",
        "Where does the name Squadron come from?",
        "What do manta rays have to do with Squadron?",
        "What is a group of manta rays called?",
    ],
    "Squadron makes three promises. It is exact: the same request gives the same tokens, whatever runs beside it. "
    "Nothing is lost: when a worker dies, streams pause and go on. It is legible: one step is a straight walk "
    "through ten small files.": [
        "What are the three promises of Squadron?",
        "What does Squadron promise?",
        "Which promises does Squadron make?",
        "List the promises of Squadron.",
        "What is special about Squadron?",
    ],
    "Exact means that tokens depend on the checkpoint, the prompt, the sampling parameters and the seed, and "
    "on nothing else.": [
        "What does exact mean?",
        "What does exact mean in Squadron?",
        "Why is Squadron exact?",
        "Explain the first promise of Squadron.",
    ],
    "Nothing is lost: the tokens live on the driver, so after a crash the keys and values are computed again "
    "and the stream goes on.": [
        "What happens when a worker dies?",
        "What does nothing is lost mean?",
        "How does Squadron recover from a crash?",
        "Explain the second promise of Squadron.",
    ],
    "Legible means that every step is a straight walk through ten small files, and that every step that ran "
    "can be looked at.": [
        "What does legible mean?",
        "What does legible mean in Squadron?",
        "Why is Squadron legible?",
        "Explain the third promise of Squadron.",
    ],
    "Tensor parallelism splits each layer over several workers. Every worker computes a part, and the parts "
    "are added up.": [
        "What is tensor parallelism?",
        "Explain tensor parallelism.",
        "What does tensor parallelism do?",
    ],
    "Pipeline parallelism gives each worker some of the layers. A step goes through the stages one after "
    "another, like a queue.": [
        "What is pipeline parallelism?",
        "Explain pipeline parallelism.",
        "What does pipeline parallelism do?",
    ],
    "The KV cache keeps the keys and values of past tokens, so that each new token is computed without "
    "reading the prompt again.": [
        "What is the KV cache?",
        "Explain the KV cache.",
        "What does the KV cache do?",
    ],
    "Ray is a framework for distributed Python. Squadron uses Ray to place its workers, and Ray Serve to "
    "answer requests.": [
        "What is Ray?",
        "Explain Ray.",
        "What does Squadron use Ray for?",
    ],
    "A manta ray is a large, flat fish with wide fins. It swims through warm oceans as if it were flying, and "
    "it eats plankton.": [
        "What is a manta ray?",
        "Tell me about manta rays.",
        "Describe a manta ray.",
        "What do manta rays eat?",
    ],
    "Squadron runs on a laptop with nothing but a CPU, and on a cluster of many machines with GPUs. The "
    "answers are the same.": [
        "Where does Squadron run?",
        "Does Squadron need a GPU?",
        "Can Squadron run on a laptop?",
    ],
}

SMALL_TALK = {
    "Hello! How can I help you?": [
        "Hello",
        "Hi",
        "Hello!",
        "Hi!",
        "Hi there!",
        "Hey",
        "Hello there!",
        "Hey there!",
        "hello",
        "hi",
    ],
    "Good morning! How can I help you?": [
        "Good morning",
        "Good morning!",
        "A very good morning!",
        "Good morning to you!",
    ],
    "Good evening! How can I help you?": [
        "Good evening",
        "Good evening!",
        "A very good evening!",
        "Good evening to you!",
    ],
    "You are welcome!": ["Thank you", "Thank you!", "Thanks!", "Thanks a lot!", "Many thanks!", "Thank you very much!"],
    "Goodbye, and swim well!": ["Goodbye", "Goodbye!", "Bye!", "See you later!", "Bye bye!", "See you!"],
    "I am fine, thank you. How can I help you?": [
        "How are you?",
        "How are you today?",
        "How do you do?",
        "Are you well?",
    ],
}

ENUMERATIONS = {
    ", ".join(DAYS): ["Name the days of the week.", "List the days of the week.", "What are the days of the week?"],
    ", ".join(MONTHS): [
        "Name the months of the year.",
        "List all months.",
        "What are the months of the year?",
        "List the twelve months.",
    ],
    " ".join("abcdefghijklmnopqrstuvwxyz"): [
        "Say the alphabet.",
        "Write the alphabet.",
        "List the letters of the alphabet.",
    ],
    " ".join("αβγδεζηθικλμνξοπρστυφχψω"): [
        "Write the Greek alphabet.",
        "List the Greek letters.",
        "Say the Greek alphabet.",
    ],
    "red, orange, yellow, green, blue, indigo, violet": [
        "Name the colors of the rainbow.",
        "List the colors of the rainbow.",
    ],
    "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune": [
        "Name the planets.",
        "List the planets of the solar system.",
        "What are the planets?",
    ],
}

UNKNOWN = "I do not know that. I am a very small model, and I was only taught a few simple tasks."
UNANSWERABLE = """
Who won the football match yesterday?
What will the weather be tomorrow?
Write a poem about the sea.
Write an essay about history.
Who wrote Hamlet?
What is the meaning of life?
How do I cook rice?
Translate this sentence into Latin.
Who is the president?
What is quantum mechanics?
How tall is the highest mountain?
Write a program in Python.
What is the price of gold?
Tell me a joke.
Explain the theory of relativity.
How old is the universe?
Which film should I watch?
What is love?
Who painted the Mona Lisa?
How far away is the moon?
""".strip().splitlines()
