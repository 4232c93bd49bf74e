package repositories

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// kind is a kind of lists.
type kind struct {
	name  string
	scope string // of the login
	parse func(body []byte) ([]string, error)
}

const catalogScope = "registry:catalog:*"

var (
	catalog  = &kind{"list the catalog", catalogScope, parseCatalog}
	projects = &kind{"list Harbor's projects", "", parseHarbor}
	project  = &kind{"list a project of Harbor", "", parseHarbor}
)

// parseCatalog parses a page of the catalog.
func parseCatalog(body []byte) ([]string, error) {
	var answer struct {
		Repositories *[]string `json:"repositories"`
	}
	err := json.Unmarshal(body, &answer)
	if err == nil && answer.Repositories == nil && !strings.Contains(string(body), `"repositories"`) {
		err = errors.New("it has no repositories")
	}
	if err != nil || answer.Repositories == nil { // null: an empty catalog
		return nil, err
	}
	return *answer.Repositories, nil
}

// parseHarbor parses a page of Harbor's projects, or of a project's repositories, whose names begin
// with that of the project.
func parseHarbor(body []byte) (names []string, err error) {
	var answer []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	for _, item := range answer {
		names = append(names, item.Name)
	}
	return names, nil
}

// checkLast returns an error if Harbor has said that a list has more names than its pages had.
func (k *kind) checkLast(header http.Header, count int) error {
	total, err := strconv.Atoi(header.Get("X-Total-Count"))
	if k == catalog || err != nil || total <= count {
		return nil
	}
	return fmt.Errorf("it has sent %d of %d names, and no link to the next page", count, total)
}

// isHarbor asks the registry whether it is Harbor.
func (s *Search) isHarbor(ctx context.Context) (bool, error) {
	res, body, err := s.get(ctx, catalogScope, "https://"+s.host+"/api/v2.0/ping")
	return err == nil && res.StatusCode == http.StatusOK && strings.Trim(string(body), "\"\n ") == "Pong", err
}

// ofHarbor returns the first page of what to read at Harbor: of the prefix's project, or of all
// projects.
func (s *Search) ofHarbor() page {
	if name, _, _ := strings.Cut(s.prefix, "/"); name != "" {
		return s.project(name)
	}
	first := fmt.Sprintf("https://%s/api/v2.0/projects?page=1&page_size=%d", s.host, harborPage)
	return page{url: first, kind: projects}
}

// project returns the first page of the repositories of a project of Harbor.
func (s *Search) project(name string) page {
	return page{url: fmt.Sprintf("https://%s/api/v2.0/projects/%s/repositories?page=1&page_size=%d", s.host,
		url.PathEscape(name), harborPage), kind: project}
}
