# One-line names for the checks. `.ci/run` is the list that counts; nothing here is needed for it.

# Every check, as a change is checked
ci:
    ./.ci/run

# Format in place
fmt:
    cargo fmt

# Lints, warnings are errors
lint:
    cargo clippy --locked --all-targets -- -D warnings

# Documentation, broken links are errors
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# All tests; `just test NAME` for some
test *NAME:
    ./test {{NAME}}

# Licences, sources and duplicates of the dependencies
deny:
    cargo deny --locked check bans licenses sources

# What the steps of the request path cost; `just bench NAME` for some
bench *NAME:
    cargo bench --locked --bench hot_path -- {{NAME}}

# Against real registries and stock clients; `just real NAME` for some
real *NAME:
    tests/real/run {{NAME}}

# Rewrite the expectations of the golden configuration files; read the difference then
golden:
    UPDATE_GOLDEN=1 cargo test --locked --test conformance golden

# The whole story on this machine
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# Static binary for the image's platform (needs the target: rustup target add x86_64-unknown-linux-musl)
static TARGET="x86_64-unknown-linux-musl":
    cargo build --release --locked --target {{TARGET}}
