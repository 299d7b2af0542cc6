"""Sends requests as its first argument says, and prints how many of their answers arrived."""

import concurrent.futures
import json
import ssl
import sys
import urllib.error
import urllib.request

plan = json.loads(sys.argv[1])
context = ssl.create_default_context(cafile=plan["authority"])


def ask(_):
    headers = {"content-type": plan["contentType"], "authorization": "Bearer " + plan["token"]}
    body = b"x" * plan["bytes"]
    request = urllib.request.Request(plan["address"], body, headers, method=plan["method"])
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            answer.read()
            code = answer.status
    except urllib.error.HTTPError as refusal:
        refusal.read()
        code = refusal.code
    except OSError as error:
        return repr(error)
    return None if code == plan["code"] else f"{code}"


with concurrent.futures.ThreadPoolExecutor(plan["atOnce"]) as threads:
    errors = [error for error in threads.map(ask, range(plan["count"])) if error]
print(json.dumps({"answered": plan["count"] - len(errors), "errors": errors[:3]}))
