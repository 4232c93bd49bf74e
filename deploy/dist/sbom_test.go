package dist

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaLoader loads the schemas of CycloneDX from the module that has them, by the last element of
// their URL.
type schemaLoader struct{ dir string }

func (l schemaLoader) Load(url string) (any, error) {
	name := path.Base(url)
	if name == "jsf-0.82.schema.json" {
		name = "jsf-0.82.schemax.json" // misspelt in the module
	}
	f, err := os.Open(filepath.Join(l.dir, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return jsonschema.UnmarshalJSON(f)
}

// Each SBOM fits its schema, and lists exactly the modules that the go command has stamped into the
// binary, and Go's standard library.
func TestSBOMs(t *testing.T) {
	dir := strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go"))
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(schemaLoader{filepath.Join(dir, "schema")})
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range architectures {
		file := file(t, "lighter-*-"+arch.name+".cdx.json")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(document); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if got, want := modulesOf(t, text), linkedInto(t, strings.TrimSuffix(file, ".cdx.json")); !slices.Equal(got, want) {
			t.Errorf("%s lists\n%s\nwant\n%s", file, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// modulesOf returns the modules in an SBOM, with their versions.
func modulesOf(t *testing.T, sbom []byte) (modules []string) {
	t.Helper()
	var parsed struct {
		SpecVersion string
		Components  []struct{ Name, Version string }
	}
	if err := json.Unmarshal(sbom, &parsed); err != nil {
		t.Fatal(err)
	}
	if parsed.SpecVersion != "1.6" {
		t.Errorf("the SBOM is of version %s, want 1.6", parsed.SpecVersion)
	}
	for _, c := range parsed.Components {
		modules = append(modules, c.Name+" "+c.Version)
	}
	slices.Sort(modules)
	return modules
}

// linkedInto returns the modules that are in a binary, with their versions.
func linkedInto(t *testing.T, binary string) []string {
	t.Helper()
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	modules := []string{"std " + info.GoVersion}
	for _, dep := range info.Deps {
		modules = append(modules, fmt.Sprintf("%s %s", dep.Path, dep.Version))
	}
	slices.Sort(modules)
	return modules
}
