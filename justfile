# What a developer of Ballast types. `just` lists it.

_default:
    @just --list

# Watch a chassis of twelve servers hold its budget for a minute.
demo *ARGS:
    cargo run --bin ballast -- demo {{ARGS}}

# Everything that must pass before a commit.
check: fmt lint doc test

# Format.
fmt:
    cargo fmt --all

# Lint as CI does.
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Build the documentation as CI does.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The book of docs/, into docs/book. Needs mdbook.
book:
    mdbook build docs

# Every test of the product.
test:
    cargo test

# Product code by crate; with a commit, what was added, deleted and moved since.
lines *COMMIT:
    packaging/lines {{COMMIT}}

# Property tests with cases that nobody has seen yet, and faults that break a promise, over new seeds.
explore *ARGS:
    PROPTEST_RNG_SEED=$(date +%s) cargo test --workspace
    cargo run --release --bin ballast-lab -- experiment faults {{ARGS}}

# Mutation tests of the agent's and the manager's core: about 300 mutants, more with SECONDS. See CONTRIBUTING.md.
mutants COMMIT="HEAD" SECONDS="0":
    packaging/mutants {{COMMIT}} {{SECONDS}}

# What takes a night: every property with seeds that nobody has seen yet, the model's histories, campaigns of
# faults, the guest with every repetition, four hours of mutants, and the archive. Needs root, and a machine that does nothing else.
nightly: deb
    for n in $(seq 20); do \
        PROPTEST_RNG_SEED=$(date +%s) cargo test --release --locked --workspace \
            --exclude ballast --exclude ballast-lab --exclude ballast-tests --exclude ballast-testbed || exit 1; \
    done
    cargo run --release --locked --bin ballast-lab -- model 120
    cargo run --release --locked --bin ballast-lab -- experiment faults --seed $(date +%s) --seeds 20000
    cargo run --release --locked --bin ballast-lab -- guest --tries 100
    cargo run --release --locked --bin ballast-lab -- guest --uclamp
    packaging/mutants HEAD 14400
    packaging/dist
    packaging/dist-check

# Every parser that eats bytes from outside, under libFuzzer for so many seconds in all: proof/fuzz/README.md.
# Needs cargo-fuzz and a C++ compiler; what it finds new stands in proof/fuzz/corpus.
fuzz SECONDS="600":
    for target in $(ls proof/fuzz/corpus); do \
        cargo fuzz run --fuzz-dir proof/fuzz -s none $target -- -timeout=5 -rss_limit_mb=512 \
            -max_total_time=$(({{SECONDS}} / $(ls proof/fuzz/corpus | wc -l))) || exit 1; \
    done

# Drive two managers and two agents through every history of a few faults, and random ones of many.
model *MINUTES:
    cargo run --release --locked --bin ballast-lab -- model {{MINUTES}}

# The figures of README.md: alert latency, the plant's and the replay's speed.
bench:
    cargo run --profile dist --bin ballast-lab -- bench alerts
    cargo run --profile dist --bin ballast-lab -- bench plan
    cargo bench -p ballast-sim

# The pages of proof/results and their plots: the paper's figures, and ours beside them.
experiments *ARGS:
    cargo run --release --bin ballast-lab -- experiment all --output proof/results {{ARGS}}

# The agent on a real kernel, in a Debian guest under QEMU's emulation: proof/guest/README.md.
guest *ARGS: deb
    cargo run --release --locked --bin ballast-lab -- guest {{ARGS}}

# The same on a kernel with cpu.uclamp.max, which is built once: ten minutes on two cores. Part of the night.
guest-uclamp *ARGS: deb
    cargo run --release --locked --bin ballast-lab -- guest --uclamp {{ARGS}}

# The planner's SQL query on Spark: needs Python 3, Java 17 and 500 MB; not part of CI. docs/place-and-plan/planner.md
spark-check:
    cargo build --release --bin ballast
    tests/spark/check

# Licences, sources, banned crates.
deny:
    cargo deny check bans licenses sources

# Debian packages of CLI, agent, chassis manager and placement daemon, into target/debian.
deb *PROFILE:
    packaging/deb {{PROFILE}}

# An archive of static programs with checksums and a list of what they are made of, into target/archive.
dist:
    packaging/dist

# RPM packages of the same files, into target/generate-rpm.
rpm: deb
    packaging/rpm

# Install, upgrade, remove and purge the Debian packages in a root of its own: nothing may be left. Needs root.
deb-check:
    packaging/check target/debian/*.deb

# All of CI, as it runs on a clean clone.
ci:
    bash .ci/run
