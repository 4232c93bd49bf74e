package wire

// Fsck asks for a comparison of the hub's stores.
type Fsck struct {
	Repair bool `json:"repair,omitempty"`
	Deep   bool `json:"deep,omitempty"` // read every object
	// Confirm lets a repair remove any number of names whose manifests the hub's registry lacks.
	// Without it, the hub removes none of these names if they are more than half of all its names,
	// and more than 8.
	Confirm bool `json:"confirm,omitempty"`
}

// Check is the result of a comparison of the hub's stores.
type Check struct {
	Objects  int64     `json:"objects"`         // number of compared objects
	Bytes    int64     `json:"bytes,omitempty"` // bytes of objects that were read
	Blobs    int64     `json:"blobs"`           // number of compared blobs of images, in the registry
	Findings []Finding `json:"findings"`
}

// Finding is one kind of problem.
type Finding struct {
	Problem  string   `json:"problem"`
	Count    int64    `json:"count"`
	Repaired int64    `json:"repaired"`           // how many of Count were repaired
	Examples []string `json:"examples,omitempty"` // some of the problems
	Images   []string `json:"images,omitempty"`   // some of the images with parts that were not repaired
	Remedy   string   `json:"remedy,omitempty"`   // what to do about problems that were not repaired
}

// Left returns the number of problems that were not repaired.
func (c *Check) Left() (n int64) {
	for _, f := range c.Findings {
		n += f.Count - f.Repaired
	}
	return n
}
