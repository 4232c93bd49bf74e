package hub_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// memoryS3 is an S3 server with one bucket in memory, of small objects: it knows no uploads in
// several parts. It refuses requests as a test says.
type memoryS3 struct {
	mu      sync.Mutex // guards the following
	objects map[string][]byte
	refuses func(*http.Request) int // status of the answer; 0: the request is not refused
}

// startS3 starts a server, and returns the URL of its bucket.
func startS3(t *testing.T) (s *memoryS3, bucket string) {
	t.Helper()
	s = &memoryS3{objects: map[string][]byte{}, refuses: nothing}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	q := url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "use_path_style": {"true"},
		"anonymous": {"true"}}
	return s, "s3://bucket?" + q.Encode()
}

func (s *memoryS3) refuse(refuses func(*http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = refuses
}

func (s *memoryS3) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if status := s.refuses(req); status != 0 {
		w.WriteHeader(status)
		return
	}
	key, isObject := strings.CutPrefix(req.URL.Path, "/bucket/")
	if !isObject || key == "" {
		s.serveBucket(w, req, body)
		return
	}
	object, exists := s.objects[key]
	switch req.Method {
	case http.MethodPut:
		if source := req.Header.Get("X-Amz-Copy-Source"); source != "" {
			from, _ := url.PathUnescape(source)
			s.objects[key] = s.objects[strings.TrimPrefix(strings.TrimPrefix(from, "/"), "bucket/")]
			fmt.Fprint(w, "<CopyObjectResult></CopyObjectResult>")
			return
		}
		s.objects[key] = body
	case http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet, http.MethodHead:
		if !exists {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		http.ServeContent(w, req, "", time.Now(), bytes.NewReader(object))
	}
}

type s3List struct {
	XMLName        xml.Name `xml:"ListBucketResult"`
	Contents       []s3Object
	CommonPrefixes []struct{ Prefix string }
}

type s3Object struct {
	Key          string
	Size         int
	LastModified time.Time
}

// serveBucket lists objects, or deletes several of them. Its lists have no pages.
func (s *memoryS3) serveBucket(w http.ResponseWriter, req *http.Request, body []byte) {
	query := req.URL.Query()
	if req.Method == http.MethodPost {
		var wanted struct {
			Object []struct{ Key string }
		}
		if err := xml.Unmarshal(body, &wanted); err != nil {
			panic(err)
		}
		for _, o := range wanted.Object {
			delete(s.objects, o.Key)
		}
		fmt.Fprint(w, "<DeleteResult></DeleteResult>")
		return
	}
	if query.Has("uploads") {
		fmt.Fprint(w, "<ListMultipartUploadsResult></ListMultipartUploadsResult>")
		return
	}
	var list s3List
	prefix, last := query.Get("prefix"), ""
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		below, listed := strings.CutPrefix(key, prefix)
		if !listed || key <= query.Get("start-after") {
			continue
		}
		if dir, _, isBelow := strings.Cut(below, "/"); isBelow && query.Get("delimiter") == "/" {
			if dir != last {
				list.CommonPrefixes = append(list.CommonPrefixes, struct{ Prefix string }{prefix + dir + "/"})
			}
			last = dir
			continue
		}
		list.Contents = append(list.Contents, s3Object{key, len(s.objects[key]), time.Now().UTC()})
	}
	_ = xml.NewEncoder(w).Encode(list) // the client may have disconnected
}
