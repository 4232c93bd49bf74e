package wire

import "time"

// What the retention rules do with a name and its images.
const (
	VerdictStays = "stays"
	VerdictGoes  = "goes"  // it will be removed
	VerdictWaits = "waits" // it would be removed, but an administrator has to confirm that
)

// Verdict is what the retention rules say about a name.
type Verdict struct {
	Name       string    `json:"name"`
	Repository string    `json:"repository"`
	Then       string    `json:"then"` // what the rules do: VerdictStays, VerdictGoes, VerdictWaits
	Why        string    `json:"why"`
	Pushed     time.Time `json:"pushed"`
	// Used is when a tree of the name was last used or published, or a node that has it last
	// reported. Zero: no image of the name is ready.
	Used  time.Time `json:"used,omitzero"`
	Bytes int64     `json:"bytes"` // sum of the sizes of its images' configs and layers, according to the manifests
}

// RetentionPath is the path of the verdicts.
func RetentionPath(domain string) string { return below(domain, "retention") }
