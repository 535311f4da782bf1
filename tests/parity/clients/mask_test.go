package clients_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// What differs from run to run. Times and durations keep their form, digits become zeros, so that alignment and
// formats are still compared.
var (
	measured = []*regexp.Regexp{
		regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| [+-]\d{4} \S+)?`),
		regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:s|ms|µs)\b`),
		regexp.MustCompile(`\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\b`),
		regexp.MustCompile(`\b\d+ (?:seconds?|minutes?|hours?|days?|weeks?|months?|years?) (?:ago|from now)\b`),
	}
	mac    = regexp.MustCompile(`\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b`)
	digits = regexp.MustCompile(`[0-9]`)
	xid    = regexp.MustCompile(`\b[0-9a-v]{20}\b`)
	uuid   = regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	spaces = regexp.MustCompile(`[ \t]+`)
	fact   = regexp.MustCompile(`code = (\w+) desc = ([^\n]*)`)
	number = regexp.MustCompile(`0+(?:\.0+)?`)
)

// masked replaces what is different on every run and keeps the width of everything.
func masked(text string, allDigits bool) string {
	text = xid.ReplaceAllString(text, "XXXXXXXXXXXXXXXXXXXX")
	text = mac.ReplaceAllString(text, "00:00:00:00:00:00")
	text = uuid.ReplaceAllString(text, "00000000-0000-0000-0000-000000000000")
	for _, pattern := range measured {
		text = pattern.ReplaceAllStringFunc(text, func(found string) string {
			return digits.ReplaceAllString(found, "0")
		})
	}
	if allDigits {
		text = digits.ReplaceAllString(text, "0")
	}
	return text
}

// sorted orders the lines below the first; replies of several machines arrive in any order.
func sorted(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > 2 {
		slices.Sort(lines[1:])
	}
	return strings.Join(lines, "\n") + "\n"
}

// rpcErrors lists the statuses an error text tells: they come from the machine and must be told by either client.
func rpcErrors(stderr string) []string {
	var found []string
	for _, match := range fact.FindAllStringSubmatch(stderr, -1) {
		found = append(found, fmt.Sprintf("%s: %s", match[1], strings.TrimSpace(match[2])))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// stored is the form of an outcome that is kept in testdata: exit status, what matters of the output, and errors of
// machines. Widths depend on what a machine has, so runs of spaces become one, and numbers become one zero.
func stored(c comparison, out outcome) string {
	var text strings.Builder
	fmt.Fprintf(&text, "exit status %d\n", out.status)
	for _, failure := range rpcErrors(out.stderr) {
		if !c.looseErrors {
			fmt.Fprintf(&text, "machine error %s\n", ownNames(failure))
		}
	}
	body := masked(out.stdout, c.digits)
	if c.normalize != nil {
		body = c.normalize(body)
	}
	for i, line := range strings.Split(strings.TrimRight(sorted(body), "\n"), "\n") {
		if (i > 0 || c.headless) && c.keep != nil && !c.keep.MatchString(line) {
			continue
		}
		line = measured[1].ReplaceAllString(line, "DURATION")
		line = strings.TrimRight(spaces.ReplaceAllString(line, " "), " ")
		text.WriteString(ownNames(number.ReplaceAllString(line, "0")) + "\n")
	}
	return text.String()
}

// ownNames hides what belongs to this run's cluster.
func ownNames(text string) string {
	text = strings.ReplaceAll(text, fleet.name, "CLUSTER")
	text = regexp.MustCompile(`clients-\d+`).ReplaceAllString(text, "CLUSTER")
	text = strings.ReplaceAll(text, fleet.home, "HOME")
	for name, address := range map[string]string{"CONTROLPLANE": controlPlane, "WORKER": worker, "NOBODY": nobody} {
		text = strings.ReplaceAll(text, address, name)
		text = strings.ReplaceAll(text, number.ReplaceAllString(digits.ReplaceAllString(address, "0"), "0"), "NODE")
	}
	return text
}
