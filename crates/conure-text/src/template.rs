//! Chat templates: messages to one text, by the Jinja template of the file or a known one.

use crate::date;
use crate::error::TextError;
use crate::tokenizer::Tokenizer;
use conure_gguf::Metadata;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

/// Steps that a template may take: a thousand messages take a few hundred thousand.
const FUEL: u64 = 20_000_000;
/// How deep a template may call itself.
const DEPTH: usize = 64;
/// The longest template that is read: the longest known one has 30 kB.
const MAX_TEMPLATE: usize = 1 << 20;

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`; templates may know others.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_owned(), content: content.into() }
    }
}

/// Templates that are known by name.
const KNOWN: [(&str, &str); 3] = [
    (
        "gemma",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content ~ '\\n\\n' %}\
         {% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}\
         {% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
         {{ raise_exception('roles must alternate user, assistant, user, ...') }}{% endif %}\
         <start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
         {{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}\
         {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    (
        "chatml",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n\
         {{ m.content | trim }}<|eot_id|>{% endfor %}\
         {% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
];

/// A chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
    trim: bool,
}

impl ChatTemplate {
    /// The template in `tokenizer.chat_template` of `meta`; messages call the file `origin`.
    ///
    /// # Errors
    /// [`TextError::NoTemplate`] if there is none; one that is broken.
    pub fn from_gguf(meta: &Metadata, origin: &str) -> Result<ChatTemplate, TextError> {
        match meta.opt_str("tokenizer.chat_template")? {
            Some(source) => ChatTemplate::new(source),
            None => Err(TextError::NoTemplate { origin: origin.to_owned(), known: known() }),
        }
    }

    /// The template that is known by this name.
    pub fn named(name: &str) -> Option<ChatTemplate> {
        let source = KNOWN.iter().find(|(known, _)| *known == name)?.1;
        Some(ChatTemplate { source: source.to_owned(), trim: false })
    }

    /// A template in Jinja.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line, if it is broken.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        let template = ChatTemplate { source: source.to_owned(), trim: true };
        if source.len() > MAX_TEMPLATE {
            return Err(TextError::Template { reason: format!("it has {} bytes", source.len()), line: None });
        }
        let environment = template.environment();
        environment.template_from_named_str("chat", &template.source).map_err(|e| template.failed(&e))?;
        drop(environment);
        Ok(template)
    }

    /// Its text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text that `messages` are for the model of `tokenizer`, up to where its answer begins if `answer`. Special tokens are
    /// in it as text: encode it with signs found, and none added.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template fails, refuses the messages or does not end.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        answer: bool,
    ) -> Result<String, TextError> {
        let token = |id: Option<u32>| id.map_or(String::new(), |id| tokenizer.piece_text(id).into_owned());
        let values = context! {
            messages => values_of(messages),
            add_generation_prompt => answer,
            bos_token => token(tokenizer.bos()),
            eos_token => token(tokenizer.eos()),
            date_string => date::now("%d %b %Y"),
        };
        self.render_with(values)
    }

    fn render_with(&self, values: Value) -> Result<String, TextError> {
        self.environment().render_named_str("chat", &self.source, values).map_err(|e| self.failed(&e))
    }

    fn environment(&self) -> Environment<'_> {
        let mut environment = Environment::new();
        if self.trim {
            // As transformers reads templates.
            if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
                environment.set_syntax(syntax);
            }
        }
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_debug(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| date::now(&format));
        environment.add_filter("tojson", to_json);
        environment
    }

    /// What went wrong, with the line of the template.
    fn failed(&self, error: &Error) -> TextError {
        let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
        let line = error.line().and_then(|n| self.source.lines().nth(n.saturating_sub(1)));
        let line = line.map(|l| l.trim().chars().take(120).collect());
        TextError::Template { reason, line }
    }
}

/// Messages as templates see them.
fn values_of(messages: &[Message]) -> Vec<Value> {
    let one = |m: &Message| Value::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
    messages.iter().map(one).collect()
}

/// The names of [`KNOWN`].
fn known() -> String {
    KNOWN.map(|(name, _)| name).join(", ")
}

/// JSON as Python writes it: `", "` and `": "` between things, or indented; no escapes but those of JSON.
fn to_json(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Others that Python knows change nothing here.
    let _: Option<Value> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let text = match indent {
        Some(_) => serde_json::to_string_pretty(&value).map_err(wrong)?,
        None => {
            let mut out = Vec::new();
            let mut serializer = serde_json::Serializer::with_formatter(&mut out, Spaced);
            value.serialize(&mut serializer).map_err(wrong)?;
            String::from_utf8_lossy(&out).into_owned()
        }
    };
    Ok(Value::from_safe_string(text))
}

/// A space after commas and colons.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Value {
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", " Hi "),
            Message::new("assistant", "Hello"),
        ];
        context! { messages => values_of(&messages), add_generation_prompt => true, bos_token => "<bos>" }
    }

    #[test]
    fn known_templates_are_those_of_the_families() {
        let of = |name| ChatTemplate::named(name).unwrap().render_with(values()).unwrap();
        assert_eq!(
            of("gemma"),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>model\n"
        );
        assert_eq!(
            of("chatml"),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n\
             Hello<|im_end|>\n<|im_start|>assistant\n"
        );
        assert!(
            of("llama3")
                .starts_with("<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>")
        );
        assert_eq!(ChatTemplate::named("nothing"), None);
    }

    #[test]
    fn templates_are_read_as_transformers_reads_them() {
        for (template, expected) in [
            (
                "{% for m in messages %}\n  {% if loop.first %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\n.",
                "system\n.",
            ),
            ("{{ messages[1].content.strip().upper() }}", "HI"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "3",
            ),
            ("{{ {'a': [1, 'é<'], 'b': none} | tojson }}", "{\"a\": [1, \"é<\"], \"b\": null}"),
            (
                "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
                "system",
            ),
            ("{{ strftime_now('%Y') | length }}", "4"),
        ] {
            assert_eq!(
                ChatTemplate::new(template).unwrap().render_with(values()).unwrap(),
                expected,
                "{template}"
            );
        }
    }

    #[test]
    fn broken_templates_are_errors_that_quote_them() {
        let broken = ChatTemplate::new("ok\n{% if x %}\nno end").map(|_| ()).unwrap_err().to_string();
        assert!(broken.contains("chat template failed") && broken.contains("at: "), "{broken}");
        let fails = |t: &str| ChatTemplate::new(t).unwrap().render_with(values()).unwrap_err().to_string();
        let refused = fails("x\n  {{ raise_exception('roles must alternate') }}");
        assert!(refused.contains("roles must alternate; at: {{ raise_exception("), "{refused}");
        let endless = fails("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}");
        assert!(endless.contains("chat template failed"), "{endless}");
        let deep = fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
        assert!(deep.contains("chat template failed"), "{deep}");
    }
}
