// Sends requests as its first argument says, and prints how many of their answers arrived.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

type plan struct {
	Address, Authority, Method, ContentType, Token string
	HTTP2                                          bool
	Count, AtOnce, Bytes, Code                     int
}

type seen struct {
	Answered int      `json:"answered"`
	Errors   []string `json:"errors"`
}

func main() {
	var plan plan
	must(json.Unmarshal([]byte(os.Args[1]), &plan))
	authority, err := os.ReadFile(plan.Authority)
	must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	result, lock, turns := seen{Errors: []string{}}, sync.Mutex{}, make(chan struct{}, plan.AtOnce)
	var all sync.WaitGroup
	for range plan.Count {
		turns <- struct{}{}
		all.Add(1)
		go func() {
			defer func() { <-turns; all.Done() }()
			err := ask(plan, roots)
			lock.Lock()
			defer lock.Unlock()
			if err == nil {
				result.Answered++
			} else if len(result.Errors) < 3 {
				result.Errors = append(result.Errors, err.Error())
			}
		}()
	}
	all.Wait()
	must(json.NewEncoder(os.Stdout).Encode(result))
}

// Each request has a connection of its own.
func ask(plan plan, roots *x509.CertPool) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: plan.HTTP2}
	if !plan.HTTP2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(plan.Method, plan.Address, bytes.NewReader(make([]byte, plan.Bytes)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", plan.ContentType)
	request.Header.Set("Authorization", "Bearer "+plan.Token)
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.ReadAll(answer.Body); err != nil {
		return err
	}
	if (answer.ProtoMajor == 2) != plan.HTTP2 || answer.StatusCode != plan.Code {
		return fmt.Errorf("%s %s", answer.Proto, answer.Status)
	}
	return nil
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
