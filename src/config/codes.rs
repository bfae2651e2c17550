//! The error codes of the configuration: one table, numbers are stable for ever. Codes below 100
//! are errors, from 100 on warnings.

/// What kind of problem a diagnostic reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u16, &'static str);

macro_rules! codes {
    ($($name:ident = $number:literal: $explain:literal,)*) => {
        impl Code {
            $(#[doc = $explain] pub const $name: Self = Self($number, $explain);)*
            /// Every code, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

codes! {
    UNREADABLE = 1: "The file cannot be opened or read.",
    NOT_UTF8 = 2: "The file is not UTF-8, or has control characters. Save it as UTF-8 text.",
    TOO_LARGE = 3: "The file is larger than 1 MiB.",
    SYNTAX = 4: "The file is not valid YAML.",
    TAB = 5: "A line is indented with a tab. YAML indents with spaces only.",
    QUOTE_IT = 6: "A ${NAME} inside {...} or [...] must be quoted, because YAML reads its brace as a new map.",
    DUPLICATE_KEY = 7: "A key stands twice in one map. Only one of the values could hold, so neither does.",
    YAML_FEATURE = 8: "A YAML feature that configuration files do not use: tags, several documents, maps as keys, aliases without end.",
    TOO_DEEP = 9: "Maps and lists are nested too deeply.",
    VARIABLE = 10: "A ${NAME} names an environment variable that is not set. Set it, or write ${NAME:-default}.",
    VARIABLE_SYNTAX = 11: "A ${...} is malformed. Legal are ${NAME}, ${NAME:-default} and ${NAME:?message}; $${ is a literal ${.",
    UNKNOWN_FIELD = 12: "No such key exists here. Unknown keys are errors, so that a typing mistake is never silently ignored.",
    NOT_YET = 13: "The key or value is part of the file format, but this version does not support it yet.",
    WRONG_TYPE = 14: "The value has another shape than this key takes: a single value, a list or a map.",
    MISSING = 15: "A key that has no default is missing.",
    EMPTY = 16: "The key is written without a value. Remove the line to have the default.",
    BOOLEAN = 17: "A switch takes true or false; yes, no, on and off mean different things to different YAML tools.",
    UNKNOWN_VALUE = 18: "The key takes one of a fixed list of words, and this is none of them.",
    NUMBER = 19: "The value is no number, or lies outside the range of this key.",
    DURATION = 20: "The value is no duration. Durations need a unit: 250ms, 5s, 1m30s, 1h; the longest is 24h.",
    SIZE = 21: "The value is no size. Sizes need a unit: 512B, 64KiB, 1MiB, 1GiB.",
    PERCENT = 22: "The value is no percentage. Percentages are plain numbers from 1 to 100: write 50 for 50 %.",
    ADDRESS = 23: "The value is no address of the form this key takes.",
    NAME = 24: "The name is empty, too long, or has a character that is not allowed in it.",
    CODE_SET = 25: "The value is no status code, name of one, or range of codes.",
    UNKNOWN_REGISTRY = 26: "The registry is not defined under `registries`.",
    SAME_ADDRESS = 27: "Two listeners have the same address.",
    SAME_HOST = 28: "Two services have the same host; requests for it could go to either.",
    NEEDS_TOKEN = 29: "The admin listener may leave the loopback addresses only with `admin.token_file`.",
    VERSION = 30: "The file format is another one than this version reads.",
    SAME_POLICY_NAME = 31: "Two policies have the same name. Names are unique over all files; the later file is rejected.",
    SAME_PATTERNS = 32: "Two policies apply to exactly the same patterns. The later file is rejected.",
    NO_SOURCE = 33: "A service has neither endpoints nor a registry to ask.",
    CHOOSE_ONE = 34: "Exactly one of several keys must be written.",
    PORT_TAKEN = 35: "Preflight: an address of the configuration cannot be listened on here. Something else has it, or it is not this machine's, or the port needs a privilege.",
    NO_REGISTRATION = 38: "An item of app.register asks for something that its registry does not offer, or stands twice.",
    NO_FALLBACK = 39: "An item of `fallback` names an upstream that cannot be one: the service itself, or one that is not defined.",
    ATTEMPT_EXCEEDS_REQUEST = 101: "An explicit timeout.attempt is longer than timeout.request, so it never ends an attempt.",
    INLINE_SECRET = 102: "A secret stands in the file itself. Use the *_file key or an environment variable.",
    NO_MATCH = 103: "A glob of `policies` matches no file.",
    SAME_ALIAS = 104: "Two services have the same host alias or differ only in case; neither has the alias.",
    HOST_SHADOWED = 105: "A host can never be matched, or takes requests away from another service.",
    SAME_ENDPOINT = 106: "An address stands twice in one list of endpoints. The first one holds.",
    NO_BUDGET = 107: "The policy of an upstream with several instances can never eject any.",
    NO_DEFAULT_REGISTRY = 108: "auto_discover has no default registry to look in.",
    FILE_ABSENT = 109: "The file of a registry does not exist yet.",
    POLICY_TIE = 110: "Two policies fit an upstream equally well; the first by file and line holds.",
    POLICIES_GONE = 111: "Policy files that were in force are gone or no longer named by `policies`. What they ejected comes back, ramped.",
    TOKEN_FILE = 112: "The file of admin.token_file is missing, empty or unreadable. Until that changes the admin API lets nobody in.",
    REGISTRY_UNREACHABLE = 113: "Preflight: a registry does not answer from here. A start works without, and readiness waits for startup.registry_wait.",
    FEW_OPEN_FILES = 114: "Preflight: the limit of open files is lower than the configuration may need; connections beyond it are refused.",
    FOLDER_ABSENT = 115: "Preflight: a folder that the configuration writes to does not exist.",
    ROUTE_SHADOWED = 116: "A route never gets a request, because one before it in the list takes all that it could match.",
    NO_HOME = 117: "locality.prefer has nothing to compare instances with: the app's own zone or cluster is not known. All instances count as equally near.",
    NO_EFFECT = 118: "A key is written and can have no effect, because another key switches it off or is missing. The message names both.",
}

impl Code {
    /// Whether it is a warning.
    pub const fn is_warning(self) -> bool {
        self.0 >= 100
    }

    /// What `outrigger explain E-CFG-NNN` says.
    pub const fn explain(self) -> &'static str {
        self.1
    }

    /// By its text, in any case.
    pub fn find(text: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.to_string().eq_ignore_ascii_case(text))
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "E-CFG-{:03}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_ascending() {
        assert!(Code::ALL.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(Code::find("e-cfg-012"), Some(Code::UNKNOWN_FIELD));
    }
}
