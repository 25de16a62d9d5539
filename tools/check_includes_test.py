#!/usr/bin/env python3
"""The include check against small trees that it must accept or refuse."""
import tempfile
import unittest
from pathlib import Path

from check_includes import check_tree

TREE = {  # a clean tree; every case adds files to it
    "src/base/status.h": "#pragma once\n",
    "src/compute/ops/gemm.h": '#include "base/status.h"\n',
    "src/model/config.h": '#include "compute/ops/gemm.h"\n',
    "src/engine/engine.h": '#include "model/config.h"\n',
    "src/text/tokenizer.h": '#include "base/status.h"\n',
    "src/media/image.h": '#include "base/status.h"\n',
    "src/server/http.h": '#include "engine/engine.h"\n#include "text/tokenizer.h"\n#include "media/image.h"\n',
    "src/cli/serve.cc": '#include "server/http.h"\n',
    "src/main.cc": "#include <cstdlib>\nconst char* home() { return std::getenv(\"HOME\"); }\n",
}
BEAST = "#include <boost/beast.hpp>\n"

# files added, the breaches wanted: (path, line, a part of the message)
CASES = {
    "a clean tree is accepted": ({}, []),
    "base sees nothing": ({"src/base/a.cc": '#include "compute/ops/gemm.h"\n'}, [("src/base/a.cc", 1, "base may include nothing")]),
    "compute does not see model": ({"src/compute/a.cc": '\n#include "model/config.h"\n'}, [("src/compute/a.cc", 2, "compute may")]),
    "model does not see engine": ({"src/model/a.cc": '#include "engine/engine.h"\n'}, [("src/model/a.cc", 1, "model may")]),
    "engine never sees text": ({"src/engine/a.cc": '#include "text/tokenizer.h"\n'}, [("src/engine/a.cc", 1, "engine may")]),
    "engine never sees server": ({"src/engine/a.cc": '#include "server/http.h"\n'}, [("src/engine/a.cc", 1, "engine may")]),
    "text does not see compute": ({"src/text/a.cc": '#include "compute/ops/gemm.h"\n'}, [("src/text/a.cc", 1, "text may")]),
    "text does not see media": ({"src/text/a.cc": '#include "media/image.h"\n'}, [("src/text/a.cc", 1, "text may")]),
    "media does not see text": ({"src/media/a.cc": '#include "text/tokenizer.h"\n'}, [("src/media/a.cc", 1, "media may")]),
    "compute does not see text": ({"src/compute/a.cc": '#include "text/tokenizer.h"\n'}, [("src/compute/a.cc", 1, "compute may")]),
    "server does not see cli": ({"src/cli/c.h": "", "src/server/a.cc": '#include "cli/c.h"\n'}, [("src/server/a.cc", 1, "server may")]),
    "tests obey too": ({"src/base/a_test.cc": '#include "model/config.h"\n'}, [("src/base/a_test.cc", 1, "base may")]),
    "no relative includes": ({"src/base/a.cc": '#include "status.h"\n'}, [("src/base/a.cc", 1, "path from src/")]),
    "no unknown folder": ({"src/util/a.h": ""}, [("src/util/a.h", 1, "not a folder of the design")]),
    "getenv in main.cc only": ({"src/base/a.cc": 'auto x = getenv("X");\n'}, [("src/base/a.cc", 1, "getenv")]),
    "secure_getenv counts": ({"src/base/a.cc": 'auto x = secure_getenv("X");\n'}, [("src/base/a.cc", 1, "getenv")]),
    "getenv in a comment or string is a word": ({"src/base/a.cc": '// getenv\n/* a\ngetenv */\nauto x = "getenv";\n'}, []),
    "no thread_local": ({"src/base/a.cc": "\n\nthread_local int x;\n"}, [("src/base/a.cc", 3, "thread_local")]),
    "no Beast in a header": ({"src/server/a.h": BEAST}, [("src/server/a.h", 1, ".cc files")]),
    "no Asio in a header": ({"src/server/a.h": "#include <boost/asio/ip/tcp.hpp>\n"}, [("src/server/a.h", 1, ".cc files")]),
    "four files with Beast are fine": ({f"src/server/{i}.cc": BEAST for i in range(4)}, []),
    "five files with Beast are not": ({f"src/server/{i}.cc": BEAST for i in range(5)}, [("src/server/4.cc", 1, "at most 4")]),
    "oneDNN only in benchmarks": ({"src/compute/a.cc": "#include <oneapi/dnnl/dnnl.hpp>\n", "bench/b.cc": "#include <dnnl.h>\n",
                                   "src/compute/a_bench.cc": "#include <dnnl.hpp>\n"}, [("src/compute/a.cc", 1, "oneDNN")]),
}


class CheckIncludes(unittest.TestCase):
    def test_each_case(self):
        for name, (files, want) in CASES.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as root:
                for path, text in {**TREE, **files}.items():
                    file = Path(root) / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                got = check_tree(root)
                self.assertEqual(len(got), len(want), got)
                for line, (path, number, part) in zip(got, want):
                    self.assertTrue(line.startswith(f"{path}:{number}: "), line)
                    self.assertIn(part, line)


if __name__ == "__main__":
    unittest.main()
