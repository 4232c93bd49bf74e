// Package repositories finds the repositories of another registry: those of its catalog
// (GET /v2/_catalog), or those of Harbor's projects where Harbor refuses the catalog.
//
// A search reads one page at a time, with one request. The package promises that a search ends,
// whatever the registry answers. An answer that is no list of names, pages that repeat, a next page
// at another host: each ends its list with one error, which says what was wrong. Projects of Harbor
// do not depend on each other: if one cannot be read, the others are.
//
// The package refuses pages that are larger than its bounds, and searches of more pages or names.
// It reads no tags, and does not check names.
//
// Hazard: the requests for Harbor are made as its API is documented. The tests have a server that
// answers so, and no Harbor.
package repositories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"lighter/registries/push"
)

const (
	maxPage  = 8 << 20 // bytes
	maxPages = 10_000  // of a search
	maxEmpty = 100     // pages of a list, one after the other: some registries leave names out
	maxNames = 1_000_000

	pageSize    = 1000 // names that are asked for at a time; registries may send fewer
	harborPage  = 100  // the most that Harbor sends
	pageTimeout = time.Minute
)

// Login returns a client that is logged in to the registry for a scope. With an empty scope it
// sends user and password, not a token.
type Login func(ctx context.Context, scope string) (*http.Client, error)

// Search finds the repositories of a registry. It is for one goroutine.
type Search struct {
	host, prefix string
	login        Login
	clients      map[string]*http.Client // by scope
	pages        []page                  // that are to be read
	asked        map[string]bool         // URLs of pages that were read
	names        int
}

// page is a page of a list.
type page struct {
	url    string
	kind   *kind
	before []string // names of the page before it in its list
	count  int      // of the names in all pages before it
	empty  int      // pages before it that had no names, one after the other
	err    error    // instead of the page
}

// New returns a search for the repositories of the registry HOST[:PORT] whose name is prefix, or
// begins with it and a slash. An empty prefix is for all.
func New(host, prefix string, login Login) *Search {
	first := fmt.Sprintf("https://%s/v2/_catalog?n=%d", host, pageSize)
	return &Search{host: host, prefix: prefix, login: login, clients: map[string]*http.Client{},
		asked: map[string]bool{}, pages: []page{{url: first, kind: catalog}}}
}

// More reports whether there are further pages.
func (s *Search) More() bool { return len(s.pages) > 0 }

// Next reads a page and returns its names, which may be none. After an error, Next may be called
// again to read the page again, or Skip.
func (s *Search) Next(ctx context.Context) ([]string, error) {
	p := s.pages[0]
	if p.err != nil {
		return nil, p.err
	}
	names, further, err := s.read(ctx, p)
	if err != nil {
		return nil, err
	}
	s.asked[p.url] = true
	s.names += len(names)
	switch {
	case s.names > maxNames:
		further = []page{{err: fmt.Errorf("%s lists more than %d names: the rest is not read", s.host, maxNames)}}
		s.pages = nil
	case len(s.asked) >= maxPages && len(further)+len(s.pages) > 1:
		further = []page{{err: fmt.Errorf("%s sends more than %d pages: the rest is not read", s.host, maxPages)}}
		s.pages = nil
	default:
		s.pages = s.pages[1:]
	}
	s.pages = append(further, s.pages...)
	if p.kind == projects { // names of projects
		return nil, nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return !s.isWanted(name) }), nil
}

// Skip gives up the page that could not be read, and those after it in its list.
func (s *Search) Skip() { s.pages = s.pages[1:] }

func (s *Search) isWanted(name string) bool {
	return s.prefix == "" || name == s.prefix || strings.HasPrefix(name, s.prefix+"/")
}

// read requests a page. further are the pages that it leads to.
func (s *Search) read(ctx context.Context, p page) (names []string, further []page, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	res, body, err := s.get(ctx, p.kind.scope, p.url)
	if err != nil {
		return nil, nil, err
	}
	if p.kind == catalog && isRefusal(res.StatusCode) {
		isHarbor, err := s.isHarbor(ctx)
		if err != nil {
			return nil, nil, err
		}
		if isHarbor {
			return nil, []page{s.ofHarbor()}, nil
		}
		return nil, nil, fmt.Errorf("%s: GET %s: it answers %s, and it is no Harbor", p.kind.name, p.url, res.Status)
	}
	if res.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: GET %s: it answers %s", p.kind.name, p.url, res.Status)
	}
	if names, err = p.kind.parse(body); err != nil {
		return nil, nil, fmt.Errorf("%s: GET %s: the answer is no list of names: it has the type %q and begins with %q",
			p.kind.name, p.url, res.Header.Get("Content-Type"), body[:min(len(body), 20)])
	}
	if p.kind == projects {
		for _, project := range names {
			further = append(further, s.project(project))
		}
	}
	next, err := s.next(p, res, names)
	switch {
	case err != nil:
		further = append(further, page{err: fmt.Errorf("%s: GET %s: %w", p.kind.name, p.url, err)})
	case next != "":
		empty := p.empty + 1
		if len(names) > 0 {
			empty = 0
		}
		further = append(further, page{url: next, kind: p.kind, before: slices.Clone(names),
			count: p.count + len(names), empty: empty})
	}
	return names, further, nil
}

// isRefusal reports whether a registry has no catalog for this user.
func isRefusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound ||
		status == http.StatusMethodNotAllowed
}

// get sends a request, and reads the answer if its status is 200.
func (s *Search) get(ctx context.Context, scope, from string) (*http.Response, []byte, error) {
	client := s.clients[scope]
	if client == nil {
		var err error
		if client, err = s.login(ctx, scope); err != nil {
			return nil, nil, err
		}
		s.clients[scope] = client
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return res, nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxPage+1))
	if err == nil && len(body) > maxPage {
		err = fmt.Errorf("it is longer than %d MiB", maxPage>>20)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the answer to GET %s: %w", from, err)
	}
	return res, body, nil
}

// next returns the URL of the page after p, or nothing if p is the last one.
func (s *Search) next(p page, res *http.Response, names []string) (string, error) {
	base, err := url.Parse(p.url)
	if err != nil {
		return "", err
	}
	next, err := push.NextPage(res.Header, base)
	switch {
	case err != nil:
		return "", err
	case next == nil:
		return "", p.kind.checkLast(res.Header, p.count+len(names))
	case next.Path != base.Path:
		return "", fmt.Errorf("its next page is at another path, %s", next.Path)
	}
	if s.asked[next.String()] || next.String() == p.url || p.empty == maxEmpty ||
		len(names) > 0 && slices.Equal(names, p.before) {
		return "", errors.New("its pages repeat")
	}
	return next.String(), nil
}
