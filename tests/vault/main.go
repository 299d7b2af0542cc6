// vault is HashiCorp Vault's server, small: its core and its HTTP API with key-value secrets, tokens, AppRole and Kubernetes
// sign-in, in one folder. It initializes and unseals itself and prints its root token as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	log "github.com/hashicorp/go-hclog"
	kubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/audit"
	auditfile "github.com/hashicorp/vault/builtin/audit/file"
	"github.com/hashicorp/vault/builtin/credential/approle"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/file"
	"github.com/hashicorp/vault/vault"
)

var (
	secrets     = backends{"kv": kv.Factory}
	credentials = backends{"approle": approle.Factory, "kubernetes": kubernetes.Factory}
)

type backends map[string]logical.Factory

// registry tells the core what may be mounted. Vault's own one links all its backends; without any, a mount panics.
type registry struct{}

func (registry) of(kind consts.PluginType) backends {
	switch kind {
	case consts.PluginTypeSecrets:
		return secrets
	case consts.PluginTypeCredential:
		return credentials
	default:
		return nil
	}
}

func (r registry) Contains(name string, kind consts.PluginType) bool {
	_, ok := r.of(kind)[name]
	return ok
}

func (r registry) Get(name string, kind consts.PluginType) (func() (interface{}, error), bool) {
	factory, ok := r.of(kind)[name]
	return func() (interface{}, error) { return factory, nil }, ok
}

func (r registry) Keys(kind consts.PluginType) []string {
	return slices.Sorted(maps.Keys(r.of(kind)))
}

func (r registry) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, r.Contains(name, kind)
}

// What opens the folder again.
type keys struct {
	Unseal []byte
	Token  string
}

func main() {
	plain := flag.String("http", "127.0.0.1:0", "address without TLS")
	secure := flag.String("https", "", "address with TLS")
	data := flag.String("data", "", "folder")
	cert := flag.String("cert", "", "PEM of the certificate")
	key := flag.String("key", "", "PEM of its key")
	flag.Parse()
	if *data == "" {
		fail(errors.New("-data is missing"))
	}
	logger := log.New(&log.LoggerOptions{Level: log.Warn, Output: os.Stderr})
	backend, err := file.NewFileBackend(map[string]string{"path": filepath.Join(*data, "storage")}, logger)
	fail(err)
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           backend,
		Logger:             logger,
		DisableMlock:       true,
		BuiltinRegistry:    registry{},
		LogicalBackends:    secrets,
		AuditBackends:      map[string]audit.Factory{"file": auditfile.Factory},
		CredentialBackends: credentials,
	})
	fail(err)
	opened, err := open(core, filepath.Join(*data, "keys.json"))
	fail(err)
	server := &http.Server{Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{Core: core})}
	if *secure != "" {
		listener, err := net.Listen("tcp", *secure)
		fail(err)
		go func() { fail(server.ServeTLS(listener, *cert, *key)) }()
	}
	listener, err := net.Listen("tcp", *plain)
	fail(err)
	fail(json.NewEncoder(os.Stdout).Encode(map[string]string{"token": opened.Token}))
	fail(server.Serve(listener))
}

// Initializes the core the first time, and unseals it.
func open(core *vault.Core, path string) (*keys, error) {
	ctx := context.Background()
	opened := &keys{}
	if text, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(text, opened); err != nil {
			return nil, err
		}
	} else {
		config := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}
		made, err := core.Initialize(ctx, &vault.InitParams{BarrierConfig: config})
		if err != nil {
			return nil, err
		}
		opened.Unseal, opened.Token = made.SecretShares[0], made.RootToken
		text, err := json.Marshal(opened)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
	}
	unsealed, err := core.Unseal(opened.Unseal)
	if err == nil && !unsealed {
		err = errors.New("the core stays sealed")
	}
	return opened, err
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(1)
	}
}
