//! How text becomes HTML, and what surrounds a page.

use super::MARK;
use serde_json::Value;
use std::fmt::Display;
use std::io::{Cursor, Read};
use zip::ZipArchive;

/// Vega and Vega-Lite, minified, with their licences.
const LIBRARIES: &[u8] = include_bytes!("vega.zip");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// The browser may load nothing: Vega makes functions of expressions, and that is all that it is allowed.
const POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'";

/// A part of a page.
pub(super) struct Section {
    /// What links to it say.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) body: String,
}

impl Section {
    /// On a page that has it once.
    pub(super) fn whole(&self) -> String {
        let Self { id, title, body } = self;
        format!("<h2 id=\"{id}\">{title}</h2>\n{body}")
    }

    /// Within a part of another one.
    pub(super) fn within(&self) -> String {
        let Self { title, body, .. } = self;
        format!("<h3>{title}</h3>\n{body}")
    }
}

/// Text within HTML, in attributes too.
pub(super) fn text(of: impl Display) -> String {
    let mut safe = String::new();
    for c in of.to_string().chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // What HTML has no place for.
            c if c.is_control() && c != '\n' && c != '\t' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Text in which what stands between backticks is code.
pub(super) fn prose(of: &str) -> String {
    let pieces = of.split('`').enumerate();
    let marked = pieces.map(|(n, piece)| match n % 2 {
        1 => format!("<code>{}</code>", text(piece)),
        _ => text(piece),
    });
    marked.collect()
}

/// JSON within a script.
pub(super) fn json(value: &Value) -> String {
    // In JSON these stand in strings alone.
    let all = value.to_string().replace('<', "\\u003c");
    all.replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A cell of a table.
pub(super) enum Cell {
    /// A text.
    Text(String),
    /// A number, with its unit if it has one.
    Number(String),
    /// A few words that stay on one line.
    Short(String),
    /// HTML.
    Html(String),
}

/// A table; the titles of columns of numbers begin with `#`.
pub(super) fn table(titles: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let mut html = "<div class=\"scroll\"><table><thead><tr>".to_owned();
    for title in titles {
        html += &match title.strip_prefix('#') {
            Some(title) => format!("<th class=\"n\">{}</th>", text(title)),
            None => format!("<th>{}</th>", text(title)),
        };
    }
    html += "</tr></thead><tbody>";
    for row in rows {
        html += "<tr>";
        for cell in row {
            html += &match cell {
                Cell::Text(t) => format!("<td>{}</td>", text(t)),
                Cell::Number(n) => format!("<td class=\"n\">{}</td>", text(n)),
                Cell::Short(t) => format!("<td class=\"short\">{}</td>", text(t)),
                Cell::Html(h) => format!("<td>{h}</td>"),
            };
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>\n"
}

/// Figures with what they are below each.
pub(super) fn figures(all: &[(String, &str)]) -> String {
    let each = all.iter().map(|(figure, what)| {
        let (figure, what) = (text(figure), text(what));
        format!("<div><b>{figure}</b><span>{what}</span></div>")
    });
    format!(
        "<div class=\"figures\">{}</div>\n",
        each.collect::<String>()
    )
}

/// A list.
pub(super) fn list(items: &[String]) -> String {
    let items: String = items
        .iter()
        .map(|i| format!("<li>{}</li>", prose(i)))
        .collect();
    format!("<ul class=\"changes\">{items}</ul>\n")
}

fn library(name: &str) -> String {
    let read = || {
        let mut archive = ZipArchive::new(Cursor::new(LIBRARIES)).ok()?;
        let mut text = String::new();
        archive.by_name(name).ok()?.read_to_string(&mut text).ok()?;
        Some(text)
    };
    read().expect("our own archive should have what we put in")
}

/// A whole page. `body` is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = text(title);
    let (licences, vega, lite) = (
        library("LICENSES.txt"),
        library("vega.min.js"),
        library("vega-lite.min.js"),
    );
    format!(
        "{MARK}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<div id=\"tip\"></div>\n\
         <script>\n/*\n{licences}*/\n{vega}</script>\n<script>\n{lite}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_texts_is_markup() {
        let evil = "</script><b onclick='x'>&\"\u{0}";
        assert_eq!(
            text(evil),
            "&lt;/script&gt;&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;\u{fffd}"
        );
        let packed = json(&serde_json::json!({"</script>": evil}));
        assert!(!packed.contains('<'), "{packed}");
        let read: Value = serde_json::from_str(&packed).expect("JSON");
        assert_eq!(read["</script>"], evil);
    }

    #[test]
    fn a_page_loads_nothing() {
        let page = page("<title>", "");
        assert!(page.contains("&lt;title&gt;") && page.len() < 1_000_000);
        for attribute in [" src=", " href=", "@import"] {
            assert!(!page.contains(attribute), "{attribute}");
        }
        assert!(!STYLE.contains("url("));
    }
}
