package containerd

import "testing"

// rootOf returns the ID to which a mapping maps ID 0, or an error (here -1).
func TestRootOf(t *testing.T) {
	for mapping, want := range map[string]int{
		"":                            0,
		"0:666:65536":                 666,
		"0:666:1000,1000:6666:64536":  666,
		"1000:6666:64536,0:666:1000":  666,
		"0:7:0,0:8:1":                 8,
		"0:0:4294967294":              0,
		"1:666:1":                     -1,
		"0:666:0":                     -1,
		"0:666":                       -1,
		"0:666:1:1":                   -1,
		"0:-1:1":                      -1,
		"0:4294967295:1":              -1,
		"0:4294967296:1":              -1,
		"0:1:1,":                      -1,
		"0:1:1,x":                     -1,
		"a:b:c":                       -1,
		" 0:1:1":                      -1,
		"0x0:1:1":                     -1,
		"99999999999999999999999:1:1": -1,
	} {
		got, err := rootOf(mapping)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("mapping %q: got %d (%v), want %d", mapping, got, err, want)
		}
	}
}

// rootOf returns a valid ID or an error, whatever the mapping is.
func FuzzRootOf(f *testing.F) {
	f.Add("0:666:1000,1000:6666:64536")
	f.Add("0:1:1,")
	f.Fuzz(func(t *testing.T, mapping string) {
		if root, err := rootOf(mapping); err == nil && (root < 0 || root >= 1<<32-1) {
			t.Errorf("mapping %q: got %d, want an ID below %d", mapping, root, uint32(1<<32-1))
		}
	})
}
