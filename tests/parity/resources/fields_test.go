package resources

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// sortedFields lists the fields of a message: the library writes maps in any order.
func sortedFields(message []byte) []string {
	var fields []string

	for len(message) > 0 {
		num, _, n := protowire.ConsumeField(message)
		if n < 0 {
			return append(fields, fmt.Sprintf("broken: %x", message))
		}

		fields = append(fields, fmt.Sprintf("%d %s", num, normal(message[:n])))
		message = message[n:]
	}

	slices.Sort(fields)

	return fields
}

// normal is a field in a form that does not depend on the order of map entries inside.
func normal(field []byte) string {
	_, typ, n := protowire.ConsumeTag(field)
	if typ != protowire.BytesType {
		return fmt.Sprintf("%x", field)
	}

	value, _ := protowire.ConsumeBytes(field[n:])
	sorted := slices.Clone(value)
	slices.Sort(sorted)

	return fmt.Sprintf("%d bytes %x", len(value), sorted)
}
