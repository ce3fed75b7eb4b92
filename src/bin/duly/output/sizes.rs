//! Sizes as people read them. Pure.

/// A size in its largest unit: `335 B`, `12 KiB`, `1.4 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = UNITS.iter().enumerate().rfind(|(power, _)| bytes >> (10 * (power + 1)) > 0);
    let (power, unit) = unit.unwrap_or((0, &UNITS[0]));
    let tenths = (bytes >> (10 * power)) * 10 / 1024;
    if tenths < 100 { format!("{}.{} {unit}", tenths / 10, tenths % 10) } else { format!("{} {unit}", tenths / 10) }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn a_size_is_told_in_its_largest_unit() {
        let told = [0, 1023, 1024, 12_700, 5_000_000, 1 << 40].map(bytes);
        assert_eq!(told, ["0 B", "1023 B", "1.0 KiB", "12 KiB", "4.7 MiB", "1.0 TiB"]);
    }
}
