# SPDX-License-Identifier: MIT
# Thin: Meson builds, tests/run.py runs. Each target has a build folder of its own, kept between runs.
#   make test    everything that must hold, at most 12 minutes; the last line counts
#   make demo    three processes share 1,797 digits
#   make bench   the numbers, against floors measured in the same run
#   make models  the protocol's models at full bounds        make soak   hours
#   make fuzz    libFuzzer on every decoder, a minute each (FUZZ_SECONDS=60)
#   make asan tsan clang lint cross                          other builds and checkers
SHELL := bash
MESON_SETUP := meson setup --werror
POINTS := -Dtest_points=true
RUN := python3 tests/run.py

.PHONY: all setup test demo bench models soak fuzz asan tsan clang clang-build lint abi cross install format clean

all: build/build.ninja
	@ninja -C build

setup:
	@scripts/setup.sh

build/build.ninja: | setup
	@$(MESON_SETUP) $(POINTS) build

build-release/build.ninja: | setup
	@$(MESON_SETUP) --buildtype=release -Dtests=false build-release

build-asan/build.ninja: | setup
	@$(MESON_SETUP) $(POINTS) -Db_sanitize=address,undefined build-asan

build-tsan/build.ninja: | setup
	@$(MESON_SETUP) $(POINTS) -Db_sanitize=thread build-tsan

build-clang/build.ninja: | setup
	@CC=clang CXX=clang++ $(MESON_SETUP) $(POINTS) build-clang

test: setup all
	@$(RUN) build

demo: setup build-release/build.ninja
	@ninja -C build-release
	@examples/digits/demo.sh build-release

bench: setup build-release/build.ninja
	@ninja -C build-release
	@bench/run.sh build-release

models: setup
	@models/run.sh full

soak: setup all
	@$(RUN) --suite soak build

fuzz: setup
	@tests/fuzz/run.sh build-fuzz $(or $(FUZZ_SECONDS),60)

asan: setup build-asan/build.ninja
	@ninja -C build-asan
	@LEND_TEST_SCALE=4 $(RUN) --not-suite cross --not-suite install --not-suite abi --not-suite headers build-asan

# ThreadSanitizer knows the threads of one process, so the suites that live in one.
tsan: setup build-tsan/build.ninja
	@ninja -C build-tsan
	@LEND_TEST_SCALE=8 $(RUN) --suite unit --suite device --suite proc build-tsan

clang-build: setup build-clang/build.ninja
	@ninja -C build-clang

clang: clang-build
	@$(RUN) --not-suite cross --not-suite model build-clang

lint: setup all
	@scripts/lint.sh build

# Writes the lists of exported symbols and of the public structs anew; look at the difference before you commit it.
abi: setup all
	@for name in liblend liblend-file; do \
	  so=$$(find build/src -name $$name.so.0); \
	  PYTHONPATH=tests/lib python3 tests/abi/test_abi.py $$name $$so $${so%.so.0}.a --update; done
	@PYTHONPATH=tests/lib python3 tests/abi/test_layout.py --update $(or $(CC),cc)

cross: setup all
	@$(RUN) --suite cross build

install: setup build-release/build.ninja
	@meson install -C build-release

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	@rm -rf build build-release build-asan build-tsan build-clang build-fuzz
