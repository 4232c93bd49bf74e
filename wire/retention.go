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
	Used       time.Time `json:"used,omitzero"` // last use or publication of an image; zero: none is ready
	Bytes      int64     `json:"bytes"`         // of configs and layers of its images, as the manifests have them
}

// RetentionPath is the path of the verdicts.
func RetentionPath(domain string) string { return below(domain, "retention") }
