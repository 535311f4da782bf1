// Package resources compares our resource types with those of the published library.
//
// The judge is the library: it decodes our protobuf, encodes what it decoded, and prints it as YAML.
package resources

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"go.yaml.in/yaml/v4"

	_ "github.com/siderolabs/talos/pkg/machinery/resources/block"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/cri"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/files"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/kubeaccess"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/kubespan"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/perf"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/siderolink"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/time"
	_ "github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

type definition struct {
	Type             string   `json:"type"`
	DisplayType      string   `json:"displayType"`
	DefaultNamespace string   `json:"defaultNamespace"`
	Aliases          []string `json:"aliases"`
	AllAliases       []string `json:"allAliases"`
	PrintColumns     []struct {
		Name     string `json:"name"`
		JSONPath string `json:"jsonPath"`
	} `json:"printColumns"`
	Sensitivity string `json:"sensitivity"`
	YAML        string `json:"yaml"`
}

type sample struct {
	Type  string `json:"type"`
	Proto string `json:"proto"`
	YAML  string `json:"yaml"`
}

type dump struct {
	Definitions []definition `json:"definitions"`
	Samples     []sample     `json:"samples"`
}

// ours runs the program that prints our definitions and samples.
//
// ICHOR_DUMP_DEFINITIONS may name a file with its output.
func ours(t *testing.T) dump {
	t.Helper()

	var (
		out []byte
		err error
	)

	if path := os.Getenv("ICHOR_DUMP_DEFINITIONS"); path != "" {
		out, err = os.ReadFile(path)
	} else {
		cmd := exec.Command("cargo", "run", "--quiet", "-p", "ichor-resource", "--example", "dump-definitions")
		cmd.Stderr = os.Stderr
		out, err = cmd.Output()
	}

	if err != nil {
		t.Fatalf("get our definitions: %v", err)
	}

	var all dump

	if err = json.Unmarshal(out, &all); err != nil {
		t.Fatalf("read our definitions: %v", err)
	}

	return all
}

// theirs decodes a spec with the library, nil when the library does not know the type.
func theirs(t *testing.T, typ string, spec []byte) resource.Resource {
	t.Helper()

	envelope, err := protobuf.Unmarshal(&v1alpha1.Resource{
		Metadata: &v1alpha1.Metadata{Namespace: "ns", Type: typ, Id: "id", Version: "1", Phase: "running"},
		Spec:     &v1alpha1.Spec{ProtoSpec: spec},
	})
	if err != nil {
		t.Fatalf("%s: envelope: %v", typ, err)
	}

	res, err := protobuf.UnmarshalResource(envelope)
	if err != nil {
		t.Errorf("%s: decode %x: %v", typ, spec, err)

		return nil
	}

	if _, raw := res.(*protobuf.Resource); raw {
		return nil
	}

	return res
}

func definitionOf(t *testing.T, typ string) (meta.ResourceDefinitionSpec, bool) {
	t.Helper()

	switch typ {
	case config.MachineConfigType: // cannot be decoded from nothing
		return (&config.MachineConfig{}).ResourceDefinition(), true
	case network.DNSUpstreamType: // cannot be decoded at all
		return network.DNSUpstreamExtension{}.ResourceDefinition(), true
	case meta.NamespaceType:
		return meta.NamespaceExtension{}.ResourceDefinition(), true
	case meta.ResourceDefinitionType:
		return meta.ResourceDefinitionExtension{}.ResourceDefinition(), true
	}

	res := theirs(t, typ, nil)
	if res == nil {
		return meta.ResourceDefinitionSpec{}, false
	}

	return res.(meta.ResourceDefinitionProvider).ResourceDefinition(), true
}

// stricter lists types that hold secrets and that anybody may read in the original; here they are for administrators.
var stricter = map[string]string{
	"EtcFileSpecs.files.talos.dev":               "credentials of registries",
	"ExtensionServiceConfigs.runtime.talos.dev":  "credentials of extension services",
	"ExtraManifestsConfigs.kubernetes.talos.dev": "headers of requests, inline manifests",
	"Manifests.kubernetes.talos.dev":             "the bootstrap token, secrets of users",
	"MetaKeys.runtime.talos.dev":                 "a token, keys of an encrypted STATE",
	"PlatformConfigs.net.talos.dev":              "keys of tunnels",
	"RegistryConfigs.cri.talos.dev":              "credentials of registries",
	"UniqueMachineTokens.runtime.talos.dev":      "a token",
}

func TestEveryDefinitionIsThatOfTheLibrary(t *testing.T) {
	all := ours(t)
	if len(all.Definitions) != 160 {
		t.Errorf("%d definitions instead of 160", len(all.Definitions))
	}

	for _, have := range all.Definitions {
		raw, ok := definitionOf(t, have.Type)
		if !ok {
			t.Errorf("%s: the library does not know it", have.Type)

			continue
		}

		if _, ok := stricter[have.Type]; ok {
			if raw.Sensitivity != meta.NonSensitive {
				t.Errorf("%s: sensitive in the library as well; take it off the list", have.Type)
			}

			raw.Sensitivity = meta.Sensitive
		}

		filled, err := meta.NewResourceDefinition(raw)
		if err != nil {
			t.Errorf("%s: %v", have.Type, err)

			continue
		}

		want := filled.TypedSpec()

		check := func(what string, want, have any) {
			wantJSON, _ := json.Marshal(want)
			haveJSON, _ := json.Marshal(have)

			if !bytes.Equal(wantJSON, haveJSON) {
				t.Errorf("%s is %s, want %s", what, haveJSON, wantJSON)
			}
		}

		check("type", want.Type, have.Type)
		check(have.Type+" display type", want.DisplayType, have.DisplayType)
		check(have.Type+" namespace", want.DefaultNamespace, have.DefaultNamespace)
		check(have.Type+" aliases", slices.Concat([]string{}, want.Aliases), have.Aliases)
		check(have.Type+" all aliases", slices.Concat([]string{}, want.AllAliases), have.AllAliases)
		check(have.Type+" sensitivity", string(want.Sensitivity), have.Sensitivity)

		text, err := yaml.Marshal(filled.Spec())
		if err != nil {
			t.Fatal(err)
		}

		if string(text) != have.YAML {
			t.Errorf("%s: YAML differs\n%s", have.Type, firstDifference(string(text), have.YAML))
		}

		if len(want.PrintColumns) != len(have.PrintColumns) {
			t.Errorf("%s: %d columns, want %d", have.Type, len(have.PrintColumns), len(want.PrintColumns))

			continue
		}

		for i, column := range want.PrintColumns {
			check(have.Type+" column", []string{column.Name, column.JSONPath},
				[]string{have.PrintColumns[i].Name, have.PrintColumns[i].JSONPath})
		}
	}
}

// notComparable lists samples the library cannot judge, with the reason.
var notComparable = map[string]string{
	network.DNSUpstreamType:     "has no protobuf form",
	meta.ResourceDefinitionType: "samples are no valid definitions",
}

func TestEverySpecReadsAndPrintsAsInTheLibrary(t *testing.T) {
	compared := map[string]int{}

	for _, have := range ours(t).Samples {
		if _, skip := notComparable[have.Type]; skip {
			continue
		}

		raw, err := hex.DecodeString(have.Proto)
		if err != nil {
			t.Fatal(err)
		}

		if len(raw) == 0 && (have.Type == config.MachineConfigType || have.Type == network.DeviceConfigSpecType) {
			continue // the library cannot read these from nothing
		}

		res := theirs(t, have.Type, raw)
		if res == nil {
			t.Errorf("%s: not decoded", have.Type)

			continue
		}

		want, err := yaml.Marshal(res.Spec())
		if err != nil {
			t.Errorf("%s: %v", have.Type, err)

			continue
		}

		// The library prints a configuration with its own comments and key order.
		same := string(want) == have.YAML || hasURLs(have.YAML) && sortedLines(string(want)) == sortedLines(have.YAML)
		if !same && have.Type != config.MachineConfigType {
			t.Errorf("%s: YAML differs\n%s", have.Type, firstDifference(string(want), have.YAML))
		}

		// What the library encodes must be what we sent: nothing lost, nothing made up.
		again, err := protobuf.FromResource(res)
		if err != nil {
			t.Errorf("%s: %v", have.Type, err)

			continue
		}

		message, err := again.Marshal()
		if err != nil {
			t.Errorf("%s: %v", have.Type, err)

			continue
		}

		if got := sortedFields(message.Spec.ProtoSpec); !slices.Equal(got, sortedFields(raw)) {
			t.Errorf("%s: protobuf differs\nours   %x\ntheirs %x", have.Type, raw, message.Spec.ProtoSpec)
		}

		compared[have.Type]++
	}

	if len(compared) < 157 {
		t.Errorf("only %d types compared", len(compared))
	}
}

// hasURLs tells whether a spec holds URLs, whose keys follow the field order of the Go release at hand.
func hasURLs(text string) bool {
	return strings.Contains(text, "rawfragment:")
}

func sortedLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)

	return strings.Join(lines, "\n")
}

// firstDifference shows the lines around the first difference.
func firstDifference(want, have string) string {
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")

	for i := range max(len(w), len(h)) {
		line := func(lines []string) string {
			if i < len(lines) {
				return lines[i]
			}

			return "<end>"
		}

		if line(w) != line(h) {
			return "line want: " + line(w) + "\nline have: " + line(h) + "\n--- want\n" + want + "--- have\n" + have
		}
	}

	return ""
}
