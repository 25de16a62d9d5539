# The commands of the project; each is one line of a script, so that it can be read and run by hand.
#   make demo     from a fresh Debian 12 machine to a streamed answer
#   make test     everything CI runs; make test STAGES="check build tokenizer unit" runs some of it
SHELL := /bin/bash
MODEL ?= models/nano
PORT ?= 8000
JOBS ?= $(shell nproc)
STAGES ?=

# Used where it is installed, never required.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)

.PHONY: help build demo serve test soak tokenizer deps e2e fuzz check format clean

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make build      installs what the build needs, makes build/cpu/nib
build: deps
	cmake --preset cpu
	cmake --build --preset cpu --target nib -j $(JOBS)

## make demo       builds, serves models/nano, asks it a question, prints the streamed answer
demo: build
	tools/demo.sh $(MODEL)

## make serve      serves models/nano on port 8000 (MODEL=DIR PORT=N change that)
serve: build
	build/cpu/nib serve $(MODEL) --port $(PORT)

## make test       everything CI runs (STAGES="check build tokenizer unit" for some of it)
test:
	tools/ci/test.sh $(STAGES)

## make soak       20,000 random requests against their solo runs; the report goes to docs/soak-report.md
soak: deps
	cmake --preset cpu
	cmake --build --preset cpu --target soak -j $(JOBS)
	build/cpu/soak --requests 20000 --model tests/data/oracle/inkling2-tiny-a --model-requests 4000 \
	  --report docs/soak-report.md

## make tokenizer  builds the real Inkling tokenizer from npm tiktoken into build/inkling-tokenizer
tokenizer:
	@tools/ci/install.sh node
	tools/inkling_tokenizer/build.sh

## make e2e        the end-to-end tests against build/cpu/nib
e2e: build
	tools/ci/test.sh install e2e

## make fuzz       the fuzz targets, FUZZ_SECONDS each (60)
fuzz:
	tools/ci/test.sh install fuzz

## make check      include rule and format
check:
	tools/ci/test.sh check

## make format     formats every C++ file in place
format:
	git ls-files '*.cc' '*.h' | xargs clang-format -i

## make deps       installs missing Debian packages of the build
deps:
	@tools/ci/install.sh build

## make clean      removes build/
clean:
	rm -rf build
