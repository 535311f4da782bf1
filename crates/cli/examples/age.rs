//! Seals or opens standard input, for tests that compare with the original of age:
//! `age encrypt RECIPIENT...` or `age decrypt IDENTITY...`.

use std::io::{stdin, stdout};

use ichor_cli::age::{self, Identity, Recipient};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let (mut from, mut to) = (stdin().lock(), stdout().lock());
    match what.as_str() {
        "encrypt" => {
            let recipients = words.map(|word| Recipient::parse(&word)).collect::<Result<Vec<_>, _>>()?;
            age::encrypt(&recipients, &mut from, &mut to)?;
        }
        "decrypt" => {
            let identities = words.map(|word| Identity::parse(&word)).collect::<Result<Vec<_>, _>>()?;
            age::decrypt(&identities, &mut from, &mut to)?;
        }
        _ => return Err("encrypt or decrypt?".into()),
    }
    Ok(())
}
