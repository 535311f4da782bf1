//! The little of XML that answers of S3 are made of: elements with text, no attributes that matter.

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The keys on it.
    pub keys: Vec<String>,
    /// How to ask for the next one.
    pub next: Option<String>,
}

/// Reads a page of a list; none when it is something else.
pub fn page(text: &str) -> Option<Page> {
    if !text.contains("<ListBucketResult") {
        return None;
    }
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once("<Contents>") {
        let (entry, behind) = behind.split_once("</Contents>")?;
        keys.push(first(entry, "Key")?);
        rest = behind;
    }
    let more = first(text, "IsTruncated").as_deref() == Some("true");
    let next = if more { Some(first(text, "NextContinuationToken")?) } else { None };
    Some(Page { keys, next })
}

/// The text of the first element of a name.
pub fn first(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(plain(inner))
}

fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let known = rest.find(';').and_then(|end| Some((entity(&rest[1..end])?, end)));
        match known {
            Some((character, end)) => {
                out.push(character);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

fn entity(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        other => {
            let number = other.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_with_what_was_escaped() {
        let text = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><IsTruncated>true</IsTruncated>\
                    <Contents><Key>a/b&amp;c&#x27;&#100;</Key><Size>1</Size></Contents>\
                    <Contents><Key>x &unknown; y</Key></Contents>\
                    <NextContinuationToken>more==</NextContinuationToken></ListBucketResult>";
        let page = page(text).unwrap();
        assert_eq!(page.keys, ["a/b&c'd", "x &unknown; y"]);
        assert_eq!(page.next.as_deref(), Some("more=="));
    }

    #[test]
    fn what_is_no_list_is_none() {
        assert_eq!(page("<html></html>"), None);
        assert_eq!(page("<ListBucketResult><Contents><Key>a</Key>"), None);
        let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        assert_eq!(page(empty), Some(Page { keys: vec![], next: None }));
    }
}
