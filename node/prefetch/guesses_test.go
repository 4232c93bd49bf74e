package prefetch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/format/chunk"
	"lighter/format/guess"
	"lighter/format/index"
	"lighter/format/tree"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/filetree"
)

// scripted returns the device of a tree whose program is a script. Each of the scripts names the
// next one as its interpreter, and the program perl, of two chunks, names the first one. Nothing is
// cached.
func scripted(t *testing.T, scripts int, options Options) (d *Device, s *shelf, names map[chunk.ID]string) {
	t.Helper()
	s = &shelf{chunks: map[chunk.ID][]byte{}, cached: map[chunk.ID]bool{}, requested: map[chunk.ID]int{}, keeps: true}
	names = map[chunk.ID]string{}
	var files []tree.Dirent
	for i := range scripts + 1 {
		name := fmt.Sprint("script", i)
		text := fmt.Sprintf("#!/script%d\n", i+1)
		if i == scripts {
			name, text = "perl", "#!/script0\n"
		}
		plain := []byte(text + strings.Repeat("# "+name+"\n", 1000))
		id := chunk.Sum(plain)
		s.chunks[id], names[id] = plain, name
		n := &tree.Node{Mode: tree.ModeRegular | 0o755, Nlink: 1, Size: int64(len(plain))}
		n.Content.Extents = []tree.Extent{{ID: id, Length: int64(len(plain))}}
		if name == "perl" {
			end := []byte(strings.Repeat("# the end\n", 1000))
			id := chunk.Sum(end)
			s.chunks[id], names[id] = end, "end"
			n.Content.Extents = append(n.Content.Extents, tree.Extent{ID: id, Length: int64(len(end))})
			n.Size += int64(len(end))
		}
		files = append(files, tree.Dirent{Name: name, Node: n})
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	extents := filetree.Write(t, tree.NewDir(tree.Node{Mode: 0o755}, files), file)
	d = s.open(extents, nil, options)
	d.GuessFrom(file.Name())
	return d, s, names
}

// startsWith is the config of an image that runs the first script.
func startsWith(program string) func(chunk.ID) (guess.Config, bool) {
	return func(chunk.ID) (guess.Config, bool) {
		return guess.Config{Cmd: []string{program}, Env: []string{"PATH=/"}}, program != ""
	}
}

// names returns the names of what was requested, and fails if something was requested twice.
func (s *shelf) names(t *testing.T, names map[chunk.ID]string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for id, n := range s.requested {
		got = append(got, names[id])
		if n > 1 {
			t.Errorf("%s was requested %d times", names[id], n)
		}
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

// A guess fetches a program, then what the program names, and so on.
func TestGuessGoesOnWithWhatItHasFetched(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		begins  bool
		want    string
	}{
		"program":        {Options{Limit: plenty, Config: startsWith("/script0")}, true, "script0 script1 script2"},
		"off":            {Options{Config: startsWith("/script0")}, false, ""},
		"another image":  {Options{Limit: plenty, Config: startsWith("")}, false, ""},
		"nobody knows":   {Options{Limit: plenty}, false, ""},
		"no such script": {Options{Limit: plenty, Config: startsWith("/script9")}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, names := scripted(t, 3, test.options)
			for range 2 {
				if got := d.Begin(); got != test.begins {
					t.Errorf("Begin returned %t, want %t", got, test.begins)
				}
			}
			d.guesses.work.Wait()
			if got := s.names(t, names); got != test.want {
				t.Errorf("requested %q, want %q", got, test.want)
			}
		})
	}
}

// While a guess waits for its server, those of other devices are computed.
func TestGuessThatWaits(t *testing.T) {
	d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	s.hang = make(chan struct{})
	d.Begin()
	eventually.Holds(t, "a chunk that is fetched while nothing is computed", func() bool {
		return len(d.guesses.guessing.fetching) > 0 && len(d.guesses.guessing.computing) == 0
	})
	close(s.hang)
	d.guesses.work.Wait()
}

// A known program that the config does not name is guessed when its first bytes are read, once.
func TestGuessOfWhatIsRead(t *testing.T) {
	for _, closed := range []bool{false, true} {
		d, s, names := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script9")})
		d.Begin()
		d.guesses.work.Wait()
		if len(s.requested) > 0 {
			t.Fatalf("before a read %q is requested, want nothing", s.names(t, names))
		}
		want := "end script0 script1 script2" // the reader itself fetches the beginning of perl
		if closed {
			want = ""
			d.EndStartup()
		}
		for i := range d.Extents().Extents {
			if e := extentOf(t, d, i); names[e.ID] == "perl" {
				s.mu.Lock()
				s.cached[e.ID] = true
				s.mu.Unlock()
				for range 2 {
					if _, err := d.ReadAt(t.Context(), make([]byte, 256), e.Offset); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		d.guesses.work.Wait()
		if got := s.names(t, names); got != want {
			t.Errorf("closed %t: requested %q, want %q", closed, got, want)
		}
	}
}

// What a container is about to run is guessed before anything of it is read, once, unless the
// image's config names it. Without Begin nothing is guessed.
func TestGuessOfAContainer(t *testing.T) {
	runs := func(argv ...string) guess.Config { return guess.Config{Cmd: argv, Env: []string{"PATH=/"}} }
	image := func(program string) Options { return Options{Limit: plenty, Config: startsWith(program)} }
	for name, test := range map[string]struct {
		options Options
		begins  bool
		program guess.Config
		want    string
	}{
		"another program":  {image("/script9"), true, runs("perl"), "end perl script0 script1 script2"},
		"an unknown one":   {image("/script9"), true, runs("/script2"), "script2"},
		"no such program":  {image("/script9"), true, runs("/script7"), ""},
		"that of an image": {image("/script1"), true, runs("/script1"), "script1 script2"},
		"in a directory": {image("/script1"), true, guess.Config{Cmd: []string{"/script1"}, WorkingDir: "/"},
			"script1 script2"},
		"packs":        {image("/script1"), false, runs("perl"), ""},
		"off":          {Options{Config: startsWith("/script1")}, true, runs("perl"), ""},
		"nobody knows": {Options{Limit: plenty}, true, runs("perl"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, names := scripted(t, 3, test.options)
			if test.begins {
				d.Begin()
				d.guesses.work.Wait()
			}
			for range 2 {
				d.Expect(test.program)
				d.guesses.work.Wait()
			}
			if got := s.names(t, names); got != test.want {
				t.Errorf("requested %q, want %q", got, test.want)
			}
			if waiting := len(*d.guesses.waiting.Load()); name == "another program" && waiting > 0 {
				t.Errorf("%d starts wait for a trigger, want none", waiting)
			}
			for i := range 2 * maxExpected {
				d.Expect(runs("perl", fmt.Sprint(i)))
			}
			d.guesses.work.Wait()
			want := maxExpected
			if !d.guesses.begun {
				want = 0
			}
			if got := d.guesses.expected; got != want {
				t.Errorf("%d programs were guessed, want %d", got, want)
			}
		})
	}
}

// On a long path, what the guesses of other programs need is fetched before one of them runs, up to
// a limit.
func TestPreparedGuesses(t *testing.T) {
	for name, test := range map[string]struct {
		perRTT, prepared int64
		want             string
	}{
		"long path":  {1 << 20, 0, "perl script0 script1 script2"},
		"short path": {0, 0, ""},
		"enough":     {1 << 20, maxPrepared + 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, s, names := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script9")})
			s.perRTT = test.perRTT
			d.guesses.prepared.Store(test.prepared)
			for range cap(d.guesses.guessing.computing) - 1 { // the one that is left is for Begin
				d.guesses.guessing.computing <- struct{}{}
			}
			d.Begin()
			d.guesses.work.Wait()
			if got := s.names(t, names); got != test.want {
				t.Errorf("requested %q, want %q", got, test.want)
			}
			if queued := len(d.requests.refs); queued > 0 {
				t.Errorf("%d requests of a start that has not begun", queued)
			}
		})
	}
}

// Guesses that have taken long are not repeated.
func TestGuessesTakeLittleTime(t *testing.T) {
	d, s, names := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	d.guesses.spent.Store(int64(maxSpent) + 1)
	d.Begin()
	d.guesses.work.Wait()
	if got := s.names(t, names); got != "" {
		t.Errorf("requested %q, want nothing", got)
	}
}

// Startup packs go before a guess, and make it unnecessary.
func TestNoGuessWithStartupPacks(t *testing.T) {
	d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	s.perRTT = 1 << 20
	h := &startHub{extents: d.Extents(), locations: index.NewLocations(d.Extents().ID())}
	for i := range d.Extents().Extents {
		h.locations.Add(unitOf(i))
	}
	h.startups = []index.Startup{{Pack: unitOf(0).Pack, Units: []uint32{100}, AtMount: true}}
	d.SetLocations(h.open(t))
	if !d.Begin() {
		t.Error("no pack is wanted at mount")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(s.requested); got > 1 {
		t.Errorf("%d chunks were requested, want only that of the startup pack", got)
	}
}

// What was guessed in vain ends the guess, and so does a lack of memory.
func TestGuessEnds(t *testing.T) {
	for _, blocked := range []error{nil, errors.New("short of memory")} {
		d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0"),
			Blocked: func() error { return blocked }})
		s.perRTT = 1 << 20
		d.SetLocations(alone(t, d))
		if blocked == nil {
			d.guesses.account.added.Store(startupCredit + 1)
		}
		d.Begin()
		d.guesses.work.Wait()
		if fetched, queued := len(s.requested), len(d.requests.refs); fetched > 0 || queued > 0 {
			t.Errorf("blocked %v: %d chunks are fetched, and %d queued, want none", blocked, fetched, queued)
		}
	}
}

// A closed device guesses nothing more.
func TestNoGuessAfterTheEnd(t *testing.T) {
	d, s, _ := scripted(t, 3, Options{Limit: plenty, Config: startsWith("/script0")})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d.Begin()
	d.guesses.work.Wait()
	if len(s.requested) > 0 {
		t.Errorf("%d chunks were requested after the end", len(s.requested))
	}
}
